package main

// HTTP/2 in cleartext, by prior knowledge and by `Upgrade`. The protocol is that of integration/src/shape.rs, as in
// server.go and client.go.

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
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
)

func answer(response http.ResponseWriter, request *http.Request) {
	begun := time.Now()
	parts := strings.Split(request.URL.Path, "/")
	status, framing, size := number(parts[3], 500), parts[4], number(parts[5], 0)
	query := request.URL.Query()
	pieces := number(query.Get("p"), 1)
	io.Copy(io.Discard, request.Body)
	time.Sleep(time.Duration(number(query.Get("d"), 0)) * time.Microsecond)
	bodiless := request.Method == "HEAD" || status == 204 || status == 304
	if framing == "length" && status != 204 && status != 304 {
		response.Header().Set("Content-Length", strconv.Itoa(size))
	}
	if framing == "chunked" && !bodiless {
		response.Header().Set("Trailer", "X-Digest")
	}
	response.Header().Set("X-Handler-Ns", strconv.FormatInt(time.Since(begun).Nanoseconds(), 10))
	response.WriteHeader(status)
	if bodiless {
		return
	}
	sent := 0
	for piece := 1; piece <= pieces; piece++ {
		end := size * piece / pieces
		response.Write(bytes.Repeat([]byte("b"), end-sent))
		sent = end
		if framing == "chunked" {
			response.(http.Flusher).Flush()
		}
		if piece < pieces {
			time.Sleep(time.Duration(number(query.Get("g"), 0)) * time.Microsecond)
		}
	}
	if framing == "chunked" {
		response.Header().Set("X-Digest", "0")
	}
}

func serveHTTP2([]string) {
	server := &http2.Server{MaxConcurrentStreams: 4096}
	http.Serve(listen(), h2c.NewHandler(http.HandlerFunc(answer), server))
}

type call struct {
	ID             string `json:"id"`
	Method         string `json:"method"`
	Target         string `json:"target"`
	RequestFraming string `json:"request_framing"`
	RequestBytes   int    `json:"request_bytes"`
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

func run(client http.RoundTripper, base string, one call) truth {
	begun := time.Now()
	var body io.Reader
	if one.RequestFraming == "length" {
		body = bytes.NewReader(bytes.Repeat([]byte("q"), one.RequestBytes))
	} else if one.RequestFraming == "chunked" {
		body = io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("q"), one.RequestBytes)))
	}
	request, err := http.NewRequest(one.Method, base+one.Target, body)
	fail(err)
	response, err := client.RoundTrip(request)
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

// callHTTP2 makes all calls over one connection, `concurrency` streams at a time.
func callHTTP2(arguments []string) {
	var plan struct {
		Host        string `json:"host"`
		Port        int    `json:"port"`
		TLS         bool   `json:"tls"`
		Concurrency int    `json:"concurrency"`
		Calls       []call `json:"calls"`
	}
	read(arguments[0], &plan)
	client := &http2.Transport{
		AllowHTTP:          true,
		DisableCompression: true,
		// A second connection would hide that streams wait for the first.
		StrictMaxConcurrentStreams: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
	base := fmt.Sprintf("http://%s:%d", plan.Host, plan.Port)
	if plan.TLS {
		client.DialTLSContext = nil
		client.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
		base = fmt.Sprintf("https://%s:%d", plan.Host, plan.Port)
	}
	out := &lines{encoder: json.NewEncoder(os.Stdout)}
	each(plan.Calls, plan.Concurrency, func(one call) { out.write(run(client, base, one)) })
}
