// Workload server on net/http. In: requests of the protocol in integration/src/shape.rs. Out: answers of exactly
// that shape, with the handling time in `x-handler-ns`. With TLS_CERTIFICATE and TLS_KEY over crypto/tls, and then with
// CHOPPED through connections of its own make that read seven bytes at a time, below TLS and above, with TWICE over TLS
// inside of TLS, with PRESSURE beside a loop of collections and from stacks of any depth. Prints `ready PORT`. Knows
// nothing of the agent.
package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func number(text string, otherwise int) int {
	if value, err := strconv.Atoi(text); err == nil {
		return value
	}
	return otherwise
}

func answer(response http.ResponseWriter, request *http.Request) {
	begun := time.Now()
	parts := strings.Split(request.URL.Path, "/")
	status, framing, size := number(parts[3], 500), parts[4], number(parts[5], 0)
	query := request.URL.Query()
	pieces := number(query.Get("p"), 1)
	io.Copy(io.Discard, request.Body)
	time.Sleep(time.Duration(number(query.Get("d"), 0)) * time.Microsecond)
	if framing == "length" && status != 204 && status != 304 {
		response.Header().Set("Content-Length", strconv.Itoa(size))
	}
	response.Header().Set("X-Handler-Ns", strconv.FormatInt(time.Since(begun).Nanoseconds(), 10))
	response.WriteHeader(status)
	if request.Method == "HEAD" || status == 204 || status == 304 {
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
}

// chopped is a connection that reads a few bytes at a time.
type chopped struct{ net.Conn }

func (c chopped) Read(into []byte) (int, error) { return c.Conn.Read(into[:min(7, len(into))]) }

type chopper struct{ net.Listener }

func (c chopper) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return chopped{connection}, nil
}

// deep answers from a stack that is `n` frames deeper.
func deep(n int, response http.ResponseWriter, request *http.Request) byte {
	var frame [512]byte
	if n > 0 {
		frame[n%len(frame)] = deep(n-1, response, request)
	} else {
		answer(response, request)
	}
	return frame[len(request.URL.Path)%len(frame)]
}

func pressed(response http.ResponseWriter, request *http.Request) {
	deep(rand.IntN(60), response, request)
	response.(http.Flusher).Flush()
}

func serveTLS(listener net.Listener, certificate, key string) error {
	handler := http.HandlerFunc(answer)
	if os.Getenv("PRESSURE") != "" {
		handler = pressed
		go func() {
			for {
				runtime.GC()
				time.Sleep(time.Millisecond)
			}
		}()
	}
	if os.Getenv("CHOPPED") == "" && os.Getenv("TWICE") == "" {
		return http.ServeTLS(listener, handler, certificate, key)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	if os.Getenv("CHOPPED") != "" {
		return http.Serve(chopper{tls.NewListener(chopper{listener}, config)}, handler)
	}
	return http.Serve(tls.NewListener(tls.NewListener(listener, config), config), handler)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	if certificate := os.Getenv("TLS_CERTIFICATE"); certificate != "" {
		fmt.Fprintln(os.Stderr, serveTLS(listener, certificate, os.Getenv("TLS_KEY")))
		os.Exit(1)
	}
	http.Serve(listener, http.HandlerFunc(answer))
}
