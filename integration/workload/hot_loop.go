// As hot_loop.py, by goroutines, which change threads while they wait. Calls itself once, since only programs that both
// serve and call have goroutines that are known. Prints `ready PORT`.
package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

const rounds = 400_000

//go:noinline
func burn_a() (total int) {
	for nth := range rounds {
		total += nth * nth
	}
	return total
}

//go:noinline
func burn_b() (total int) {
	for nth := range rounds {
		total ^= nth + total
	}
	return total
}

var sink int

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	go func() {
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/a", port))
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		fmt.Println("ready", port)
	}()
	panic(http.Serve(listener, http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		burn := burn_b
		if request.URL.Path == "/a" {
			burn = burn_a
		}
		for range 4 {
			sink += burn()
			time.Sleep(time.Duration(rand.IntN(4_000)) * time.Microsecond)
		}
		io.WriteString(writer, "ok")
	})))
}
