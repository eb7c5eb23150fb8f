package mpi

import (
	"math/rand/v2"
	"unsafe"
)

// network is what fake MPI libraries of several processes are joined by. It is stricter than any library: a message's
// bytes are read from the sender's memory as late as possible, when it is received; whether a call sees what has happened
// is drawn, but never out of order; and what a library may answer with nonsense is counted as a fault.
type network struct {
	random   *rand.Rand
	sent     map[[3]int][]*message // by sender, receiver and tag, the oldest first: not received yet
	requests map[uintptr]*message  // by what Isend and Irecv have returned
	asked    uintptr               // requests so far
	faults   []string
	open     int // messages that were sent and are not tested yet
}

// message is one that was sent.
type message struct {
	from []byte // of the sender; nil for a receiver's request
	done bool
}

const fakeComm, fakeBytes = 0x101, 0x247

// memory returns n bytes of C memory, which is Go memory here.
func memory[T any](at uintptr, n int) []T {
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n)
}

// world returns the world of one process.
func (n *network) world(rank, size int) *World {
	l := &Library{abi: &abis[0], comm: fakeComm, bytes: fakeBytes, room: new(room)}
	l.call = procedures{
		initThread: func(a ...uintptr) int32 {
			memory[int32](a[3], 1)[0] = int32(a[2])
			return 0
		},
		setErrhandler: func(...uintptr) int32 { return 0 },
		rank: func(a ...uintptr) int32 {
			memory[int32](a[1], 1)[0] = int32(rank)
			return 0
		},
		size: func(a ...uintptr) int32 {
			memory[int32](a[1], 1)[0] = int32(size)
			return 0
		},
		isend:    func(a ...uintptr) int32 { return n.isend(rank, a) },
		irecv:    func(a ...uintptr) int32 { return n.irecv(rank, a) },
		iprobe:   func(a ...uintptr) int32 { return n.iprobe(rank, a) },
		test:     n.test,
		finalize: func(...uintptr) int32 { return 0 },
	}
	w, err := l.Init()
	if err != nil {
		panic(err)
	}
	return w
}

func (n *network) fault(text string) int32 {
	n.faults = append(n.faults, text)
	return 1
}

// ask returns the number of a new request.
func (n *network) ask(at uintptr, m *message) {
	n.asked++
	n.requests[n.asked] = m
	memory[uintptr](at, 1)[0] = n.asked
}

func (n *network) isend(rank int, a []uintptr) int32 {
	if a[2] != fakeBytes || a[5] != fakeComm || a[1] == 0 {
		return n.fault("sends what is no bytes, nothing, or elsewhere")
	}
	m := &message{from: memory[byte](a[0], int(a[1]))}
	to := [3]int{rank, int(a[3]), int(a[4])}
	n.sent[to] = append(n.sent[to], m)
	n.ask(a[6], m)
	n.open++
	return 0
}

func (n *network) iprobe(rank int, a []uintptr) int32 {
	memory[int32](a[3], 1)[0] = 0
	if len(n.sent[[3]int{int(a[0]), rank, int(a[1])}]) > 0 && n.random.IntN(2) == 0 {
		memory[int32](a[3], 1)[0] = 1
	}
	return 0
}

func (n *network) irecv(rank int, a []uintptr) int32 {
	from := [3]int{int(a[3]), rank, int(a[4])}
	if len(n.sent[from]) == 0 {
		return n.fault("receives what was not sent yet")
	}
	m := n.sent[from][0]
	n.sent[from] = n.sent[from][1:]
	if len(m.from) > int(a[1]) {
		return n.fault("receives more than there is room for")
	}
	copy(memory[byte](a[0], int(a[1])), m.from)
	m.done = true
	n.ask(a[6], &message{done: true})
	return 0
}

func (n *network) test(a ...uintptr) int32 {
	id := memory[uintptr](a[0], 1)
	m := n.requests[id[0]]
	flag := memory[int32](a[1], 1)
	flag[0] = 0
	switch {
	case m == nil:
		return n.fault("tests a request that is not there, or has ended")
	case m.done && n.random.IntN(2) == 0:
		if delete(n.requests, id[0]); m.from != nil {
			n.open--
		}
		flag[0], id[0] = 1, 0
	}
	return 0
}
