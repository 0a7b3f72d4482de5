// Workload client on net/http: `client PLAN`. In: a plan (integration/src/plan.rs). Out: one JSON line per call on
// stdout: what was sent and what came back. With HTTP2 in its environment over HTTP/2 where the server speaks it, with
// TWICE over TLS inside of TLS. Without a plan it says `ready` and waits. Knows nothing of the agent.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

type call struct {
	ID             string `json:"id"`
	Method         string `json:"method"`
	Target         string `json:"target"`
	RequestFraming string `json:"request_framing"`
	RequestBytes   int    `json:"request_bytes"`
}

type plan struct {
	Host        string `json:"host"`
	Port        int    `json:"port"`
	TLS         bool   `json:"tls"`
	Concurrency int    `json:"concurrency"`
	Calls       []call `json:"calls"`
}

type truth struct {
	ID            string `json:"id"`
	Status        int    `json:"status"`
	RequestBytes  int    `json:"request_bytes"`
	ResponseBytes int64  `json:"response_bytes"`
	HandlerNs     *int64 `json:"handler_ns"`
	StartedNs     int64  `json:"started_ns"`
	EndedNs       int64  `json:"ended_ns"`
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(client *http.Client, base string, one call) truth {
	begun := time.Now()
	var body io.Reader
	if one.RequestFraming == "length" {
		body = bytes.NewReader(bytes.Repeat([]byte("q"), one.RequestBytes))
	} else if one.RequestFraming == "chunked" {
		body = io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("q"), one.RequestBytes)))
	}
	request, err := http.NewRequest(one.Method, base+one.Target, body)
	fail(err)
	response, err := client.Do(request)
	fail(err)
	received, err := io.Copy(io.Discard, response.Body)
	fail(err)
	response.Body.Close()
	result := truth{one.ID, response.StatusCode, one.RequestBytes, received, nil, begun.UnixNano(), time.Now().UnixNano()}
	if handler, err := strconv.ParseInt(response.Header.Get("X-Handler-Ns"), 10, 64); err == nil {
		result.HandlerNs = &handler
	}
	return result
}

func main() {
	if len(os.Args) < 2 {
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
	text, err := os.ReadFile(os.Args[1])
	fail(err)
	var all plan
	fail(json.Unmarshal(text, &all))
	transport := &http.Transport{MaxConnsPerHost: all.Concurrency, MaxIdleConnsPerHost: all.Concurrency, DisableCompression: true}
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	transport.ForceAttemptHTTP2 = os.Getenv("HTTP2") != ""
	if os.Getenv("TWICE") != "" {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			outer, err := (&tls.Dialer{Config: transport.TLSClientConfig}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return tls.Client(outer, transport.TLSClientConfig), nil
		}
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	scheme := map[bool]string{false: "http", true: "https"}[all.TLS]
	base := fmt.Sprintf("%s://%s:%d", scheme, all.Host, all.Port)
	calls, lines := make(chan call), json.NewEncoder(os.Stdout)
	var group sync.WaitGroup
	var lock sync.Mutex
	for range all.Concurrency {
		group.Add(1)
		go func() {
			defer group.Done()
			for one := range calls {
				result := run(client, base, one)
				lock.Lock()
				fail(lines.Encode(result))
				lock.Unlock()
			}
		}()
	}
	for _, one := range all.Calls {
		calls <- one
	}
	close(calls)
	group.Wait()
}
