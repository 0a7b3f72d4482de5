package main

// A service that calls another one, its clients and the other one, over HTTP/2: as causality/front.py, but
// for the protocol. `cause-back PROTOCOL`, `cause-front PROTOCOL PORT LOG` and `cause-ask PROTOCOL PORT
// CLIENTS REQUESTS KIND...`.
//
// Protocols: `h2c` and `h2` (over TLS) by net/http, `grpc` and `grpcs` by grpc-go.
//
// Each request `/KIND/ID` makes some calls `/out/ID` to the port, each with an id drawn there, and is
// answered. LOG gets a line `REQUEST CALL` once the answer to the call has come, `- CALL` for calls that no
// request makes, and `late REQUEST CALL` for those behind the answer. Servers print `ready PORT`; who asks
// prints each id once it was answered. Ids are in no trace header. SIGTERM ends the front when its requests
// and calls are over.
//
// Kinds, by who calls: `sequence`, the handler's goroutine; `fan`, a goroutine for each call; `nested`,
// goroutines of goroutines that are gone by then; `worker`, goroutines that are there from the start;
// `after`, one that goes on behind the answer.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func init() {
	commands["cause-back"] = causeBack
	commands["cause-front"] = causeFront
	commands["cause-ask"] = causeAsk
}

func drawn() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// identity is a certificate that nobody checks.
func identity() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	fail(err)
	return tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
}

func unchecked() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// caller makes one call of a path.
type caller func(path string)

// connect has all calls of a process share a connection or two.
func connect(protocol, port string) caller {
	if strings.HasPrefix(protocol, "grpc") {
		security := insecure.NewCredentials()
		if protocol == "grpcs" {
			security = credentials.NewTLS(unchecked())
		}
		client, err := grpc.NewClient("passthrough:///127.0.0.1:"+port, grpc.WithTransportCredentials(security),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		fail(err)
		return func(path string) {
			var asked, answer []byte
			fail(client.Invoke(context.Background(), path, &asked, &answer))
		}
	}
	scheme, protocols := "http", new(http.Protocols)
	if protocol == "h2" {
		scheme = "https"
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	client := http.Client{Transport: &http.Transport{Protocols: protocols, TLSClientConfig: unchecked()}}
	return func(path string) {
		response, err := client.Get(scheme + "://127.0.0.1:" + port + path)
		fail(err)
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}

// serve answers all paths when `handle` has done what they ask; it gets what to call once the answer has been sent.
func serve(protocol string, handle func(path string, answered <-chan struct{})) {
	if strings.HasPrefix(protocol, "grpc") {
		options := []grpc.ServerOption{
			grpc.ForceServerCodec(raw{}), grpc.MaxConcurrentStreams(4096),
			grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
				path, _ := grpc.MethodFromServerStream(stream)
				answered := make(chan struct{})
				context.AfterFunc(stream.Context(), func() { close(answered) })
				var message []byte
				if err := stream.RecvMsg(&message); err != nil {
					return err
				}
				handle(path, answered)
				return stream.SendMsg(&message)
			}),
		}
		if protocol == "grpcs" {
			certificate := identity()
			options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
		}
		fail(grpc.NewServer(options...).Serve(listen()))
	}
	protocols := new(http.Protocols)
	server := http.Server{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 4096}}
	server.Handler = http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		handle(request.URL.Path, request.Context().Done())
		io.WriteString(response, "ok")
	})
	if protocol == "h2" {
		protocols.SetHTTP2(true)
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{identity()}}
		fail(server.ServeTLS(listen(), "", ""))
	}
	protocols.SetUnencryptedHTTP2(true)
	fail(server.Serve(listen()))
}

func causeBack(arguments []string) {
	serve(arguments[0], func(string, <-chan struct{}) { pause() })
}

func pause() {
	if mathrand.IntN(3) == 0 {
		time.Sleep(time.Duration(mathrand.IntN(3000)) * time.Microsecond)
	}
}

type front struct {
	call    caller
	log     *os.File
	queue   chan func()
	working sync.WaitGroup
	begun   chan struct{}
	begin   func()
}

// one call, for a cause.
func (f *front) one(cause ...string) {
	out := drawn()
	f.call("/out/" + out)
	_, err := f.log.WriteString(strings.Join(append(cause, out), " ") + "\n")
	fail(err)
}

// each runs `start` for some calls and waits for all of them.
func (f *front) each(id string, start func(call func())) {
	var all sync.WaitGroup
	for range mathrand.IntN(5) {
		all.Add(1)
		start(func() {
			defer all.Done()
			pause()
			f.one(id)
		})
	}
	all.Wait()
}

func (f *front) handle(path string, answered <-chan struct{}) {
	f.begin()
	f.working.Add(1)
	defer f.working.Done()
	parts := strings.Split(path, "/")
	kind, id := parts[1], parts[2]
	switch kind {
	case "sequence":
		f.each(id, func(call func()) { call() })
	case "fan":
		f.each(id, func(call func()) { go call() })
	case "nested":
		f.each(id, func(call func()) { go func() { go call() }() })
	case "worker":
		f.each(id, func(call func()) { f.queue <- call })
	case "after":
		f.working.Add(1)
		go func() {
			defer f.working.Done()
			<-answered
			time.Sleep(5 * time.Millisecond)
			f.one("late", id)
		}()
	default:
		panic(kind)
	}
}

func causeFront(arguments []string) {
	log, err := os.OpenFile(arguments[2], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	fail(err)
	f := &front{call: connect(arguments[0], arguments[1]), log: log, queue: make(chan func()), begun: make(chan struct{})}
	f.begin = sync.OnceFunc(func() { close(f.begun) })
	for range 4 {
		go func() {
			for work := range f.queue {
				work()
			}
		}()
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go serve(arguments[0], f.handle)
	<-f.begun
	for {
		select {
		case <-ended:
			f.working.Wait()
			return
		case <-time.After(time.Duration(mathrand.IntN(50)) * time.Millisecond):
			f.one("-")
		}
	}
}

func causeAsk(arguments []string) {
	clients, requests, kinds := number(arguments[2], 0), number(arguments[3], 0), arguments[4:]
	// All of a few clients go by one connection, so that many requests are under way on it.
	ask := [2]caller{connect(arguments[0], arguments[1]), connect(arguments[0], arguments[1])}
	one := func(client, nth int) {
		id := drawn()
		ask[client%2]("/" + kinds[nth%len(kinds)] + "/" + id)
		fmt.Println(id)
	}
	// What comes with the first bytes of a connection is one request each, not one of each client.
	one(0, 0)
	one(1, 0)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for nth := range requests {
				one(client, nth)
			}
		})
	}
	all.Wait()
}
