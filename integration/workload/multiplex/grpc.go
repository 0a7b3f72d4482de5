package main

// gRPC of messages that are bytes, by the protocol of integration/src/rpc/plan.rs: what a handler is to do is in the
// metadata `shape`, the identity of a call is the trace id in `traceparent`.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw sends bytes as they are.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

type served struct {
	ID        string `json:"id"`
	Received  int    `json:"received"`
	Sent      int    `json:"sent"`
	HandlerNs int64  `json:"handler_ns"`
}

// shape says what a handler does: send so many messages of so many bytes, wait, end with a code or wait for the client.
type shape struct {
	responses, bytes, code int
	delay                  time.Duration
	hold                   bool
}

func asked(ctx context.Context) (string, shape) {
	values, _ := metadata.FromIncomingContext(ctx)
	parts := strings.Split(values.Get("shape")[0], "/")
	delay := time.Duration(number(parts[3], 0)) * time.Microsecond
	id := strings.Split(values.Get("traceparent")[0], "-")[1]
	return id, shape{number(parts[0], 0), number(parts[1], 0), number(parts[2], 0), delay, parts[4] == "1"}
}

func handle(kind string, stream grpc.ServerStream, log *lines) (result error) {
	begun := time.Now()
	id, ask := asked(stream.Context())
	done := served{ID: id}
	defer func() {
		done.HandlerNs = time.Since(begun).Nanoseconds()
		log.write(done)
	}()
	message := make([]byte, ask.bytes)
	send := func() error {
		err := stream.SendMsg(&message)
		if err == nil {
			done.Sent++
		}
		return err
	}
	var err error
	for kind != "Unary" && kind != "Expand" || done.Received == 0 {
		var received []byte
		err = stream.RecvMsg(&received)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		done.Received++
		if kind == "Chat" {
			if err := send(); err != nil {
				return err
			}
		}
	}
	time.Sleep(ask.delay)
	for kind == "Expand" && done.Sent < ask.responses {
		if err := send(); err != nil {
			return err
		}
	}
	if ask.hold {
		<-stream.Context().Done()
		return status.FromContextError(stream.Context().Err()).Err()
	}
	if ask.code != 0 {
		// A client may lose messages that a failure follows closely; one that does ends its side when it has them.
		for kind == "Expand" && err == nil {
			var none []byte
			err = stream.RecvMsg(&none)
		}
		return status.Error(codes.Code(ask.code), "as asked: 100% ü")
	}
	if kind == "Unary" || kind == "Collect" {
		return send()
	}
	return nil
}

func serveGRPC(arguments []string) {
	file, err := os.Create(arguments[0])
	fail(err)
	log := &lines{encoder: json.NewEncoder(file)}
	options := []grpc.ServerOption{grpc.ForceServerCodec(raw{}), grpc.MaxConcurrentStreams(4096)}
	if len(arguments) > 1 {
		identity, err := credentials.NewServerTLSFromFile(arguments[1], arguments[2])
		fail(err)
		options = append(options, grpc.Creds(identity))
	}
	server := grpc.NewServer(options...)
	description := grpc.ServiceDesc{ServiceName: "test.Shape", HandlerType: (*any)(nil)}
	for _, kind := range []string{"Unary", "Collect", "Expand", "Chat"} {
		description.Streams = append(description.Streams, grpc.StreamDesc{
			StreamName: kind, ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return handle(kind, stream, log) },
		})
	}
	server.RegisterService(&description, nil)
	fail(server.Serve(listen()))
}

type rpcCall struct {
	ID        string `json:"id"`
	Method    string `json:"method"`
	Requests  int    `json:"requests"`
	Responses int    `json:"responses"`
	Bytes     int    `json:"bytes"`
	Shape     string `json:"shape"`
	End       string `json:"end"`
	TimeoutMs int    `json:"timeout_ms"`
}

type rpcTruth struct {
	ID        string `json:"id"`
	Code      int    `json:"code"`
	Sent      int    `json:"sent"`
	Received  int    `json:"received"`
	StartedNs int64  `json:"started_ns"`
	EndedNs   int64  `json:"ended_ns"`
}

func runRPC(connection *grpc.ClientConn, one rpcCall) rpcTruth {
	begun := time.Now()
	result := rpcTruth{ID: one.ID, StartedNs: begun.UnixNano()}
	ctx := metadata.AppendToOutgoingContext(context.Background(),
		"traceparent", fmt.Sprintf("00-%s-%s-01", one.ID, one.ID[:16]), "shape", one.Shape)
	cancel := context.CancelFunc(func() {})
	if one.End == "deadline" {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(one.TimeoutMs)*time.Millisecond)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	err := exchange(ctx, connection, one, &result, cancel)
	result.EndedNs = result.StartedNs + time.Since(begun).Nanoseconds()
	result.Code = int(status.Code(err))
	return result
}

func exchange(ctx context.Context, connection *grpc.ClientConn, one rpcCall, result *rpcTruth, cancel func()) error {
	description := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := connection.NewStream(ctx, description, "/test.Shape/"+one.Method)
	if err != nil {
		return err
	}
	message := make([]byte, one.Bytes)
	receive := func() error {
		var received []byte
		err := stream.RecvMsg(&received)
		if err == nil {
			result.Received++
		}
		return err
	}
	for range one.Requests {
		if err := stream.SendMsg(&message); err != nil {
			break
		}
		result.Sent++
		if one.Method == "Chat" {
			if err := receive(); err != nil {
				return err
			}
		}
	}
	if one.End != "cancel" || one.Method == "Expand" || one.Method == "Unary" {
		stream.CloseSend()
	}
	for {
		if one.End == "cancel" && result.Received == one.Responses {
			cancel()
		}
		if err := receive(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func callGRPC(arguments []string) {
	var plan struct {
		Target      string    `json:"target"`
		Authority   string    `json:"authority"`
		Certificate string    `json:"certificate"`
		Concurrency int       `json:"concurrency"`
		Calls       []rpcCall `json:"calls"`
	}
	read(arguments[0], &plan)
	trust := insecure.NewCredentials()
	if plan.Certificate != "" {
		var err error
		trust, err = credentials.NewClientTLSFromFile(plan.Certificate, plan.Authority)
		fail(err)
	}
	connection, err := grpc.NewClient("passthrough:///"+plan.Target, grpc.WithTransportCredentials(trust),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})), grpc.WithDisableRetry())
	fail(err)
	out := &lines{encoder: json.NewEncoder(os.Stdout)}
	each(plan.Calls, plan.Concurrency, func(one rpcCall) { out.write(runRPC(connection, one)) })
	fail(connection.Close())
}
