// A service on net/http that calls another one: `front BACK_PORT LOG`. As causality/front.py, but for whose code runs a request.
//
// Each request `GET /KIND/ID` makes some calls `GET /out/ID` to the port, each with an id drawn here, and is answered.
// LOG gets a line `REQUEST CALL` once the answer to the call has come; `- CALL` for calls that no request makes, and
// `late REQUEST CALL` for those that a request makes after its own answer. Prints `ready PORT`. Knows nothing of the
// agent; ids are in no trace header. SIGTERM ends it when its requests and calls are over.
//
// Kinds, by who calls:
//
//	sequence  the handler's goroutine, one call after the other
//	fan       a goroutine for each call
//	nested    goroutines of goroutines that are gone by then
//	bounded   as fan, by a client with four connections, so that most calls wait for one
//	worker    goroutines that are there from the start and take calls from a queue
//	grown     goroutines that a request starts when none of those from before is idle
//	after     the handler's goroutine and one that it starts, when the request has been answered
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	back    = "http://127.0.0.1:" + os.Args[1]
	lines   *os.File
	many    = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	four    = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 4, MaxIdleConnsPerHost: 4}}
	queue   = make(chan func())
	idle    = make(chan func())
	working sync.WaitGroup
	begun   = make(chan struct{})
	begin   = sync.OnceFunc(func() { close(begun) })
)

func note(words ...string) {
	if _, err := lines.WriteString(strings.Join(words, " ") + "\n"); err != nil {
		panic(err)
	}
}

func call(client *http.Client, cause ...string) {
	var id [16]byte
	rand.Read(id[:])
	out := hex.EncodeToString(id[:])
	response, err := client.Get(back + "/out/" + out)
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, response.Body)
	response.Body.Close()
	note(append(cause, out)...)
}

func pause() {
	if mathrand.IntN(3) == 0 {
		time.Sleep(time.Duration(mathrand.IntN(3000)) * time.Microsecond)
	}
}

func fan(n int, one func()) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			pause()
			one()
		})
	}
	all.Wait()
}

// grown takes more work for as long as there is some now and then.
func grown(work func()) {
	for {
		work()
		select {
		case work = <-idle:
		case <-time.After(time.Second):
			return
		}
	}
}

func handle(response http.ResponseWriter, request *http.Request) {
	begin()
	working.Add(1)
	defer working.Done()
	parts := strings.Split(request.URL.Path, "/")
	kind, id := parts[1], parts[2]
	n := mathrand.IntN(5)
	answer := func() {
		response.Header().Set("Content-Length", "2")
		io.WriteString(response, "ok")
		response.(http.Flusher).Flush()
	}
	switch kind {
	case "sequence":
		for range n {
			pause()
			call(many, id)
		}
	case "fan":
		fan(n, func() { call(many, id) })
	case "bounded":
		fan(n, func() { call(four, id) })
	case "nested":
		done := make(chan struct{}, n)
		for range n {
			go func() {
				go func() {
					pause()
					call(many, id)
					done <- struct{}{}
				}()
			}()
		}
		for range n {
			<-done
		}
	case "worker":
		var all sync.WaitGroup
		all.Add(n)
		for range n {
			queue <- func() {
				defer all.Done()
				call(many, id)
			}
		}
		all.Wait()
	case "grown":
		var all sync.WaitGroup
		all.Add(n)
		for range n {
			work := func() {
				defer all.Done()
				call(many, id)
			}
			select {
			case idle <- work:
			default:
				go grown(work)
			}
		}
		all.Wait()
	case "after":
		answer()
		if n > 0 {
			call(many, "late", id)
		}
		for range n / 2 {
			working.Add(1)
			go func() {
				defer working.Done()
				pause()
				call(many, "late", id)
			}()
		}
		return
	default:
		panic(kind)
	}
	answer()
}

// background calls for no request, from the first request to the end.
func background(ended <-chan os.Signal) {
	<-begun
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Duration(mathrand.IntN(50)) * time.Millisecond):
			call(many, "-")
		}
	}
}

func main() {
	var err error
	lines, err = os.OpenFile(os.Args[2], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for work := range queue {
				work()
			}
		}()
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() { panic(http.Serve(listener, http.HandlerFunc(handle))) }()
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	background(ended)
	working.Wait()
}
