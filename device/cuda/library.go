package cuda

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// library computes a device's products: cublasLt with the algorithms that were chosen for it.
type library struct {
	lt      *nv.Lt // nil: there is none
	handle  uintptr
	chip    *chip
	cache   *kernels.Cache
	algos   map[algoKey]algorithm
	choices map[choiceKey]algorithm // see tune.go
	least   int64                   // multiply-adds from which products are tuned
	plans   []*nv.Plan
	refused map[string]bool // products that the library rejected, and why
}

type algorithm = [nv.AlgoBytes]byte

// algoKey is everything that the choice of an algorithm may depend on.
type algoKey struct{ canonical nv.Product }

// choiceKey is a product whose algorithm is chosen by the clock.
type choiceKey struct {
	product nv.Product
	added   bool // to C, which some algorithms round differently
}

// large reports whether a product takes long enough to be tuned.
func (k choiceKey) large(least int64) bool {
	inner := k.product.A.Cols // column-major: A^T is op(b)^T
	if k.product.TransA {
		inner = k.product.A.Rows
	}
	return int64(k.product.D.Rows)*int64(k.product.D.Cols)*int64(inner) >= least
}

// open creates the library's handle, on the worker.
func (l *library) open() error {
	if l.lt == nil {
		return nil
	}
	return l.lt.Check("Create", l.lt.Create(nv.Addr(&l.handle)))
}

// close releases plans and handle, on the worker.
func (l *library) close() {
	for _, p := range l.plans {
		p.Close()
	}
	if l.handle != 0 {
		l.lt.Destroy(l.handle)
	}
}

// reasons lists the products that the library rejected, and why.
func (l *library) reasons() []string { return slices.Sorted(maps.Keys(l.refused)) }

func (l *library) refuse(p *product, why error) { l.refused[fmt.Sprintf("%v: %v", p, why)] = true }

// scalars are the factors of a product.
type scalars struct {
	alpha, beta float32
	plan        *nv.Plan
}

// step binds a product of operands in arenas to cublasLt, on a stream.
func (l *library) step(p *product, a *arenas, stream uintptr) (step, error) {
	lt := l.lt
	desc := p.describe(a.at)
	extra := a.at(p.extra())
	algo, err := l.algorithm(canonical(desc), extra)
	if err != nil {
		return step{}, err
	}
	plan, err := lt.Plan(desc, extra)
	if err != nil {
		return step{}, err
	}
	l.plans = append(l.plans, plan)
	if chosen, ok := l.choice(choiceKey{desc, p.added()}); !ok || plan.Adopt(l.handle, chosen, workspaceBytes) != nil {
		if err := plan.Adopt(l.handle, algo, workspaceBytes); err != nil {
			l.refuse(p, err) // also if another product takes its place: its bits are not those of other extents
			return step{}, err
		}
	}
	k := &scalars{alpha: 1, plan: plan}
	c := p.y
	if !p.res.Absent() {
		c = p.res
	}
	if p.added() {
		k.beta = 1
	}
	return step{
		proc: lt.Matmul, keep: k,
		args:    plan.Args(l.handle, nv.Operands{Alpha: &k.alpha, Beta: &k.beta, A: a.at(p.b), B: a.at(p.a), C: a.at(c), D: a.at(p.y), Workspace: a.workspace, Bytes: workspaceBytes}, stream),
		explain: func(code int32) error { return lt.Check("Matmul", code) },
	}, nil
}

// algorithm returns the library's choice for a product; each is chosen once. The address of what the
// epilogue reads is aligned as the key says and no better, since the choice may depend on that.
func (l *library) algorithm(p nv.Product, extra uintptr) (algorithm, error) {
	if a, ok := l.algos[algoKey{p}]; ok {
		return a, nil
	}
	plan, err := l.lt.Plan(p, extra&^4095+uintptr(p.Align))
	if err != nil {
		return algorithm{}, err
	}
	defer plan.Close()
	list, err := plan.Algorithms(l.handle, p, workspaceBytes, 1)
	if err != nil {
		return algorithm{}, err
	}
	l.algos[algoKey{p}] = list[0]
	return list[0], nil
}

// choiceName is the choice's file in the cache. Its name says all that the first algorithm depends on, too: a
// choice is only right beside that one. A part of a card has the card's name, but not all of its SMs; and there
// are environment variables by which users change the library's arithmetic.
func (l *library) choiceName(k choiceKey) string {
	settings := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return !strings.HasPrefix(s, "CUBLAS") && !strings.HasPrefix(s, "NVIDIA_TF32")
	})
	slices.Sort(settings)
	key := sha256.Sum256(fmt.Appendf(nil, "%s %d %s %s %d %d %d %q %+v", tuneText, l.lt.GetVersion(), l.chip.name, l.chip.arch, l.chip.sms, workspaceBytes, canonRows, settings, k))
	return fmt.Sprintf("product-%s-%x.algorithm", l.chip.arch, key[:12])
}

// choice returns the algorithm that Tune chose for a product, on this device or an earlier one.
func (l *library) choice(k choiceKey) (algorithm, bool) {
	if !k.large(l.least) {
		return algorithm{}, false
	}
	if a, ok := l.choices[k]; ok {
		return a, true
	}
	text, ok := l.cache.Get(l.choiceName(k))
	if !ok || len(text) != nv.AlgoBytes {
		return algorithm{}, false
	}
	l.choices[k] = algorithm(text)
	return algorithm(text), true
}

func (l *library) choose(k choiceKey, a algorithm) {
	l.choices[k] = a
	l.cache.Put(l.choiceName(k), a[:])
}

// untuned appends the products that are large and have no algorithm yet, and those that would take the place
// of one, since only Prepare learns whether the library computes it.
func (l *library) untuned(list []choiceKey, works []work) []choiceKey {
	for _, w := range works {
		if w.product == nil {
			continue
		}
		k := choiceKey{w.product.describe(func(o device.Operand) uintptr { return uintptr(o.Addr) }), w.product.added()}
		if _, ok := l.choice(k); !ok && !ofCodes(k.product) && k.large(l.least) && !slices.Contains(list, k) {
			list = append(list, k)
		}
		list = l.untuned(list, w.instead)
	}
	return list
}
