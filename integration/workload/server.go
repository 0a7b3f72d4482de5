// Workload server on net/http. In: requests of the protocol in integration/src/shape.rs. Out: answers of exactly
// that shape, with the handling time in `x-handler-ns`. With TLS_CERTIFICATE and TLS_KEY over crypto/tls. Prints `ready PORT`. Knows nothing of the agent.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	if certificate := os.Getenv("TLS_CERTIFICATE"); certificate != "" {
		http.ServeTLS(listener, http.HandlerFunc(answer), certificate, os.Getenv("TLS_KEY"))
	}
	http.Serve(listener, http.HandlerFunc(answer))
}
