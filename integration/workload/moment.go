// A program that keeps memory, and whose goroutines wait. It says how much and how many, by what its runtime says.
package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

var kept [][]byte
var last []byte

//go:noinline
func keepLarge(n int) {
	for i := 0; i < n; i++ {
		kept = append(kept, make([]byte, 1<<20))
	}
}

//go:noinline
func keepSmall(n int) {
	for i := 0; i < n; i++ {
		kept = append(kept, make([]byte, 512))
	}
}

//go:noinline
func drop(n int) {
	for i := 0; i < n; i++ {
		kept = append(kept, make([]byte, 1<<20))
		kept = kept[:len(kept)-1]
	}
	kept = append(make([][]byte, 0, len(kept)), kept...)
}

//go:noinline
func churn(n int) {
	for i := 0; i < n; i++ {
		last = make([]byte, 1<<20)
	}
}

//go:noinline
func waitOnChannel(gate chan int, ready *sync.WaitGroup) {
	ready.Done()
	<-gate
}

//go:noinline
func spawn(n int, gate chan int, ready *sync.WaitGroup) {
	for i := 0; i < n; i++ {
		go waitOnChannel(gate, ready)
	}
}

// What so many noted objects stand for, as runtime/pprof estimates it.
func estimate(objects, bytes float64) float64 {
	if objects == 0 || bytes == 0 {
		return 0
	}
	return bytes / (1 - math.Exp(-bytes/objects/float64(runtime.MemProfileRate)))
}

func passes(stack []uintptr, name string) bool {
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

func main() {
	keepLarge(48)
	keepSmall(40000)
	drop(64)
	gate, ready := make(chan int), sync.WaitGroup{}
	ready.Add(300)
	spawn(300, gate, &ready)
	ready.Wait()
	// What a collection has found is published with the next one.
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 4096)
	n, _ := runtime.MemProfile(records, true)
	var large, small, total, allocated float64
	for index := range records[:n] {
		record := &records[index]
		bytes := estimate(float64(record.InUseObjects()), float64(record.InUseBytes()))
		total += bytes
		allocated += estimate(float64(record.AllocObjects), float64(record.AllocBytes))
		if passes(records[index].Stack(), "main.keepLarge") {
			large += bytes
		}
		if passes(records[index].Stack(), "main.keepSmall") {
			small += bytes
		}
	}
	fmt.Printf("ready %.0f %.0f %.0f %.0f %d\n", large, small, total, allocated, runtime.NumGoroutine())
	if len(os.Args) == 1 {
		time.Sleep(time.Hour)
	}
	// What is allocated from now on is published by the collections that it causes.
	for {
		churn(16)
		runtime.GC()
		time.Sleep(100 * time.Millisecond)
	}
}
