package hardware

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
)

// Instances: a card that is divided by its own hardware (NVIDIA's MIG).
//
// A card's processors are divided into a number of slices, its memory with its bandwidth into another. An instance has some
// of both, and its memory may begin only at certain slices, so not everything that would fit by numbers can be had. An
// instance is a device like any other, named CARD/INSTANCE: a100-40/3g.20gb.
//
//	a100-40   4g.20gb at 0, 2g.10gb at 4, 1g.5gb at 6       complete: nothing else can be added
//
// Source: NVIDIA's MIG user guide, "Supported MIG profiles", and `nvidia-smi mig -lgipp`. Known weaknesses: instances with
// media units, and those of an A100 that have one slice of processors with two of memory, which need newer drivers, are left
// out; of processors an instance is taken to have as many sevenths as its name says, though an H100 gives 60 of 132 for 3.

// Instance is a part of a card.
type Instance struct {
	Name      string  // 3g.20gb: slices of processors, memory
	Compute   float64 // share of the card's processors
	Memory    float64 // share of its memory and bandwidth
	slices    int     // of memory
	starts    []int   // slices of memory at which it may begin
	processor int     // slices of processors
}

// divided are the cards that can be divided. Memory is in GB as in names.
var divided = []struct {
	gpu    string
	memory float64
	usable float64 // share of processors that remains when a card is divided
	shape  []shape
}{
	{"a30", 24, 1, quarters}, {"a100-40", 40, 98. / 108, eighths}, {"a100-80", 80, 98. / 108, eighths}, {"a100-80-pcie", 80, 98. / 108, eighths},
	{"h20", 96, 1, doubled}, {"h100", 80, 1, doubled}, {"h100-pcie", 80, 1, doubled}, {"h100-nvl", 94, 1, doubled}, {"h200", 141, 1, doubled}, {"h200-nvl", 141, 1, doubled},
	{"gh200", 96, 1, doubled}, {"b200", 180, 1, doubled},
}

// shape is a kind of instance, in slices.
type shape struct {
	processor, memory int
	starts            []int
}

var (
	quarters = []shape{{1, 1, []int{0, 1, 2, 3}}, {2, 2, []int{0, 2}}, {4, 4, []int{0}}}
	eighths  = []shape{{1, 1, []int{0, 1, 2, 3, 4, 5, 6}}, {2, 2, []int{0, 2, 4}}, {3, 4, []int{0, 4}}, {4, 4, []int{0}}, {7, 8, []int{0}}}
	doubled  = append([]shape{{1, 2, []int{0, 2, 4, 6}}}, eighths...)
)

// Instances returns those into which a card of a known name can be divided; nil: it cannot.
func Instances(card string) (list []Instance) {
	g := gpuOf(card)
	if g == nil {
		return nil
	}
	for _, d := range divided {
		if d.gpu != g.name {
			continue
		}
		whole := d.shape[len(d.shape)-1]
		for _, s := range d.shape {
			share := float64(s.memory) / float64(whole.memory)
			list = append(list, Instance{
				Name:    fmt.Sprintf("%dg.%.0fgb", s.processor, math.Floor(d.memory*share+0.5)),
				Compute: d.usable * float64(s.processor) / float64(whole.processor), Memory: share,
				slices: s.memory, starts: s.starts, processor: s.processor,
			})
		}
	}
	return list
}

// instanceOf returns an instance of a card by its name; nil: there is none.
func instanceOf(card, name string) *Instance {
	list := Instances(card)
	if i := slices.IndexFunc(list, func(in Instance) bool { return in.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// cut leaves an instance of a card. Links to the host are not divided: whoever copies has them.
func (h *Hardware) cut(in *Instance, memory int64) {
	h.Memory.Device = int64(float64(memory)*in.Memory) - ContextBytes
	e := h.Engine(device.Compute)
	e.Peak, e.Bandwidth = e.Peak.times(in.Compute), e.Bandwidth*in.Memory
	h.Links = slices.DeleteFunc(h.Links, func(l Link) bool { return l.From == l.To }) // instances cannot reach each other's memory
}

// Layouts returns the ways to divide a card to which nothing can be added, each as names of instances, those with the most
// processors first.
func Layouts(card string) [][]string {
	list := Instances(card)
	if len(list) == 0 {
		return nil
	}
	seen := map[string][]int{}
	count := make([]int, len(list))
	var add func(taken, from int)
	add = func(taken, from int) {
		seen[fmt.Sprint(count)] = slices.Clone(count)
		for i := from; i < len(list); i++ {
			for _, start := range list[i].starts {
				mask := (1<<list[i].slices - 1) << start
				if taken&mask == 0 {
					count[i]++
					add(taken|mask, i)
					count[i]--
				}
			}
		}
	}
	add(0, 0)
	var full [][]int
	for _, c := range seen {
		if !extends(seen, c) {
			full = append(full, c)
		}
	}
	return named(full, list)
}

// extends reports whether a division with one instance more is possible.
func extends(seen map[string][]int, count []int) bool {
	for i := range count {
		more := slices.Clone(count)
		more[i]++
		if _, ok := seen[fmt.Sprint(more)]; ok {
			return true
		}
	}
	return false
}

// named returns divisions by the names of their instances, in an order that depends on nothing else.
func named(counts [][]int, list []Instance) (out [][]string) {
	for _, count := range counts {
		var names []string
		for i := len(list) - 1; i >= 0; i-- {
			for range count[i] {
				names = append(names, list[i].Name)
			}
		}
		out = append(out, names)
	}
	slices.SortFunc(out, func(a, b []string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(strings.Join(b, " "), strings.Join(a, " "))
	})
	return out
}
