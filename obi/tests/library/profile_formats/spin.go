// Works for a while and writes a CPU profile of it.
//
// In: the profile's path. Out: the profile, with a sample of `main.spin` at least.
package main

import (
	"bytes"
	"log"
	"os"
	"runtime/pprof"
	"time"
)

var sink uint64

//go:noinline
func spin(until time.Time) {
	for time.Now().Before(until) {
		for i := uint64(0); i < 1_000_000; i++ {
			sink += i * i
		}
	}
}

func main() {
	// On a busy machine a fifth of a second may have no sample of ours.
	for {
		var profile bytes.Buffer
		if err := pprof.StartCPUProfile(&profile); err != nil {
			log.Fatal(err)
		}
		spin(time.Now().Add(200 * time.Millisecond))
		pprof.StopCPUProfile()
		if profile.Len() > 600 {
			if err := os.WriteFile(os.Args[1], profile.Bytes(), 0o600); err != nil {
				log.Fatal(err)
			}
			return
		}
	}
}
