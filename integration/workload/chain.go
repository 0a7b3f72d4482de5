// A service on net/http that passes on what it is asked: `chain NEXT_PORT`. Each `GET PATH` makes one `GET PATH` to the
// port and is answered when that is. Passes no header on. Prints `ready PORT`.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	next := "http://127.0.0.1:" + os.Args[1]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		answer, err := http.Get(next + request.URL.Path)
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		io.WriteString(writer, "ok")
	})))
}
