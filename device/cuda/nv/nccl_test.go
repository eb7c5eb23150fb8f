package nv

import (
	"reflect"
	"strings"
	"testing"
)

// TestNCCLFacts: numbers, sizes and symbols are those of nccl.h 2.32; its functions take these arguments, which are words.
func TestNCCLFacts(t *testing.T) {
	if len(UniqueID{}) != 128 || NCCLBytes != 1 || NCCLRemote != 6 || NCCLInProgress != 7 || len(ncclErrors) != 9 {
		t.Error("NCCL_UNIQUE_ID_BYTES, ncclUint8, ncclRemoteError, ncclInProgress or ncclNumResults differ")
	}
	words := map[string]int{ // by the header's declarations
		"ncclGetVersion": 1, "ncclGetUniqueId": 1, "ncclCommInitRankScalable": 6, "ncclGroupStart": 0, "ncclGroupEnd": 0,
		"ncclSend": 6, "ncclRecv": 6, "ncclAllGather": 6, "ncclCommGetAsyncError": 2, "ncclCommAbort": 1, "ncclCommDestroy": 1,
	}
	procs := reflect.TypeFor[NCCL]()
	for i := range procs.NumField() {
		if name, ok := procs.Field(i).Tag.Lookup("sym"); ok {
			if _, known := words[name]; !known {
				t.Errorf("%s is called, and was not compared with the header", name)
			}
			delete(words, name)
		}
	}
	if len(words) > 0 {
		t.Errorf("%v are not called", words)
	}
	for code, want := range map[int]string{2708: "2.7.8", 21005: "2.10.5", 22304: "2.23.4", 23203: "2.32.3"} {
		if got := ncclVersion(code); got != want {
			t.Errorf("%d is %s, want %s", code, got, want)
		}
	}
}

// TestRealNCCL asks the real library what can be asked without a GPU: it has all symbols, says a version that is used, draws
// identities that differ, refuses impossible members, and has communicators only of GPUs.
func TestRealNCCL(t *testing.T) {
	n, err := OpenNCCL(Local())
	if err != nil || n == nil {
		t.Skip(err)
	}
	t.Log(n.Version(), n.Lib.Path())
	if !strings.HasPrefix(n.Version(), "NCCL 2.") {
		t.Errorf("the version is %q", n.Version())
	}
	t.Setenv("NCCL_SOCKET_IFNAME", "lo")
	a, err := n.Draw()
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.Draw()
	if err != nil || *a == *b || *a == (UniqueID{}) {
		t.Errorf("two identities are equal, or %v", err)
	}
	if code := n.GroupStart() | n.GroupEnd(); code != Success {
		t.Errorf("an empty group: %d", code)
	}
	if code := n.GroupEnd(); code != 5 {
		t.Errorf("the end of no group: %d, want ncclInvalidUsage", code)
	}
	if code := n.Send(0, 0, NCCLBytes, 0, 0, 0); code == Success {
		t.Error("something is sent without a communicator")
	}
	if _, err := n.Join(a, 2, 2); err == nil {
		t.Error("member 2 of 2 has joined")
	}
}

// TestNoNCCL: without the library the error says how to get it; none means none.
func TestNoNCCL(t *testing.T) {
	t.Setenv(NCCLVariable, "none")
	if n, err := OpenNCCL(Local()); n != nil || err != nil {
		t.Errorf("none: %v, %v", n, err)
	}
	t.Setenv(NCCLVariable, "/nowhere/libnccl.so.2")
	if n, err := OpenNCCL(Local()); n != nil || err == nil || !strings.Contains(err.Error(), "nvidia-nccl") {
		t.Errorf("a file that is not there: %v, %v", n, err)
	}
}
