// Clients of databases: `database LIBRARY PORT PLAN`, as database.py. Libraries: pgx, go-redis.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

type call struct {
	Text   string
	Values []any
	Words  []any
}

func report(nth int, code string, started int64) {
	ended := time.Now().UnixNano()
	fmt.Printf("{\"nth\": %d, \"code\": %q, \"started\": %d, \"ended\": %d}\n", nth, code, started, ended)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func postgres(port string, calls []call) {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, "postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable")
	check(err)
	defer connection.Close(ctx)
	for nth, call := range calls {
		started, code := time.Now().UnixNano(), ""
		_, err := connection.Exec(ctx, call.Text, call.Values...)
		var failed *pgconn.PgError
		if errors.As(err, &failed) {
			code = failed.Code
		} else {
			check(err)
		}
		report(nth, code, started)
	}
}

func redisCalls(port string, calls []call) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, DisableIdentity: true, Protocol: 2, PoolSize: 1})
	defer client.Close()
	for nth, call := range calls {
		started, code := time.Now().UnixNano(), ""
		if err := client.Do(ctx, call.Words...).Err(); err != nil && err != redis.Nil {
			code = "error"
		}
		report(nth, code, started)
	}
}

func main() {
	text, err := os.ReadFile(os.Args[3])
	check(err)
	var calls []call
	check(json.Unmarshal(text, &calls))
	if os.Args[1] == "pgx" {
		postgres(os.Args[2], calls)
	} else {
		redisCalls(os.Args[2], calls)
	}
}
