package nv

import (
	"fmt"
	"os"
	"runtime"
)

// NCCL is NVIDIA's library that moves bytes between GPUs, of one host or of several, over the fastest link there is. Only
// what moves bytes is used of it. Handles are words. A group belongs to the thread that started it; calls for one
// communicator must not be made at the same time, except Abort.
type NCCL struct {
	Lib Library // nil for a fake

	GetVersion  Proc `sym:"ncclGetVersion"`
	GetUniqueID Proc `sym:"ncclGetUniqueId"`
	// Init takes the identity by its address, where ncclCommInitRank takes its 128 bytes by value.
	Init          Proc `sym:"ncclCommInitRankScalable"`
	GroupStart    Proc `sym:"ncclGroupStart"`
	GroupEnd      Proc `sym:"ncclGroupEnd"`
	Send          Proc `sym:"ncclSend"`
	Recv          Proc `sym:"ncclRecv"`
	AllGather     Proc `sym:"ncclAllGather"`
	GetAsyncError Proc `sym:"ncclCommGetAsyncError"`
	Abort         Proc `sym:"ncclCommAbort"`
	Destroy       Proc `sym:"ncclCommDestroy"`
}

// NCCLVariable is the environment variable that names the library, or says none.
const NCCLVariable = "ATHANOR_NCCL"

// UniqueID is the identity of a communicator: one member draws it and tells the others.
type UniqueID [128]byte

// Numbers of nccl.h.
const (
	NCCLBytes      = 1 // ncclUint8
	NCCLRemote     = 6
	NCCLInProgress = 7
	oldestNCCL     = 22300 // the first with ncclCommInitRankScalable
)

// ncclErrors are the meanings of NCCL's codes, by number.
var ncclErrors = [...]string{"", "a call of CUDA failed", "a call of the system failed", "internal error", "invalid argument", "invalid usage", "another process is lost", "in progress", "too late"}

// OpenNCCL opens NCCL; nil if it is not to be used.
func OpenNCCL(p Places) (*NCCL, error) {
	own := os.Getenv(NCCLVariable)
	switch own {
	case "":
	case "none":
		return nil, nil
	default:
		p.NCCL = []string{own}
	}
	n := &NCCL{}
	lib, err := p.openFirst(n, "NCCL (libnccl.so.2)", "install it, such as by pip install nvidia-nccl-cu13; without it, bytes between GPUs of different hosts go over connections", p.NCCL)
	if err != nil {
		return nil, err
	}
	n.Lib = lib
	version, err := n.version()
	if err == nil && version < oldestNCCL {
		err = fmt.Errorf("%s is NCCL %s; hint: install 2.23 or later, or set %s=none", lib.Path(), ncclVersion(version), NCCLVariable)
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (n *NCCL) version() (int, error) {
	v := new(int32)
	err := n.Check("ncclGetVersion", n.GetVersion(Addr(v)))
	return int(*v), err
}

// ncclVersion writes a version code as people do; codes since 2.9 have five digits.
func ncclVersion(code int) string {
	if code < 10_000 {
		return fmt.Sprintf("%d.%d.%d", code/1000, code/100%10, code%100)
	}
	return fmt.Sprintf("%d.%d.%d", code/10_000, code/100%100, code%100)
}

// Version says what the library is, such as "NCCL 2.29.3": all members of a communicator must have the same.
func (n *NCCL) Version() string {
	code, err := n.version()
	if err != nil {
		return ""
	}
	return "NCCL " + ncclVersion(code)
}

// Check turns a status into an error.
func (n *NCCL) Check(call string, code int32) error {
	if code == Success {
		return nil
	}
	e := &Error{Call: call, Code: code}
	if int(code) < len(ncclErrors) {
		e.Text = ncclErrors[code]
	}
	return e
}

// Draw returns the identity of a new communicator.
func (n *NCCL) Draw() (*UniqueID, error) {
	id := new(UniqueID)
	return id, n.Check("ncclGetUniqueId", n.GetUniqueID(Addr(id)))
}

// Join makes the calling thread's GPU member rank of a communicator of so many. It waits for all members.
func (n *NCCL) Join(id *UniqueID, rank, members int) (comm uintptr, err error) {
	own := *id
	at := new(uintptr)
	err = n.Check("ncclCommInitRankScalable", n.Init(Addr(at), uintptr(members), uintptr(rank), 1, Addr(&own), 0))
	runtime.KeepAlive(&own)
	return *at, err
}

// Wrong returns the error that a communicator has met since, nil if it has met none.
func (n *NCCL) Wrong(comm uintptr) error {
	code := new(int32)
	if err := n.Check("ncclCommGetAsyncError", n.GetAsyncError(comm, Addr(code))); err != nil {
		return err
	}
	if *code == NCCLInProgress {
		return nil
	}
	return n.Check("what NCCL did meanwhile", *code)
}
