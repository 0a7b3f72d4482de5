// Workload programs over HTTP/2: `multiplex serve-http2`, `call-http2 PLAN`, `serve-grpc LOG [CERTIFICATE KEY]`,
// `call-grpc PLAN`, `cause-…`. In and out: see http2.go, grpc.go and cause.go. Knows nothing of the agent.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string, otherwise int) int {
	if value, err := strconv.Atoi(text); err == nil {
		return value
	}
	return otherwise
}

// listen takes any free port and says which.
func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	return listener
}

func read(file string, plan any) {
	text, err := os.ReadFile(file)
	fail(err)
	fail(json.Unmarshal(text, plan))
}

// lines writes JSON lines from many goroutines.
type lines struct {
	lock    sync.Mutex
	encoder *json.Encoder
}

func (l *lines) write(line any) {
	l.lock.Lock()
	defer l.lock.Unlock()
	fail(l.encoder.Encode(line))
}

// each runs `work` on all calls, `concurrency` at a time.
func each[C any](calls []C, concurrency int, work func(C)) {
	queue := make(chan C)
	var group sync.WaitGroup
	for range concurrency {
		group.Add(1)
		go func() {
			defer group.Done()
			for call := range queue {
				work(call)
			}
		}()
	}
	for _, call := range calls {
		queue <- call
	}
	close(queue)
	group.Wait()
}

var commands = map[string]func([]string){
	"serve-http2": serveHTTP2, "call-http2": callHTTP2, "serve-grpc": serveGRPC, "call-grpc": callGRPC,
}

func main() {
	commands[os.Args[1]](os.Args[2:])
}
