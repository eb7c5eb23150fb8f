package config

// Types of values: numbers with units, and lists that may be written as one item.

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/internal/size"
)

// Bytes is an amount of memory: 64MiB, 2GB, or "none" for 0.
type Bytes int64

// UnmarshalYAML reads a number or a number with a unit.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	if n.Value == "none" {
		*b = 0
		return nil
	}
	v, err := size.Parse(n.Value)
	*b = Bytes(v)
	return err
}

// MarshalYAML writes the number of bytes.
func (b Bytes) MarshalYAML() (any, error) {
	if b == Unlimited {
		return nil, nil
	}
	return int64(b), nil
}

// Rate is bytes per second, such as 2GB/s; 0 is no throttle.
type Rate float64

// MinRate is the least rate of a link, in bytes/s: probing a slower one takes minutes.
const MinRate = 1e6

// UnmarshalYAML reads an amount of memory per second.
func (r *Rate) UnmarshalYAML(n *yaml.Node) error {
	s, ok := strings.CutSuffix(strings.ReplaceAll(n.Value, " ", ""), "/s")
	bits := int64(1)
	for _, unit := range []string{"bit", "bps", "bE"} { // of networks: 25Gbit/s, 25Gbps, 25GbE
		if amount, cut := strings.CutSuffix(s, unit); cut && ok == (unit == "bit") {
			s, bits, ok = amount+"B", 8, true
		}
	}
	switch v, err := size.Parse(s); {
	case ok && len(s) > 1 && s[len(s)-1] == 'b' && strings.IndexByte("KMGT", s[len(s)-2]) >= 0:
		return fmt.Errorf("%q may be bits or bytes; hint: write GB/s for bytes or Gbit/s for bits", n.Value)
	case err != nil || !ok || v/bits < MinRate:
		return fmt.Errorf("%q is not a rate; hint: use bytes per second such as 2GB/s, or bits such as 25Gbit/s, at least 1MB/s", n.Value)
	default:
		*r = Rate(v / bits)
	}
	return nil
}

// MarshalYAML writes bytes per second, and nothing for no throttle.
func (r Rate) MarshalYAML() (any, error) {
	if r == 0 {
		return nil, nil
	}
	return fmt.Sprintf("%d/s", int64(r)), nil
}

// Number is a count that may be written as 2.0e9.
type Number int64

// UnmarshalYAML reads an integer or a whole floating-point number.
func (v *Number) UnmarshalYAML(n *yaml.Node) error {
	var f float64
	if err := n.Decode(&f); err != nil || f < 0 || f > 1<<60 || f != math.Trunc(f) {
		return fmt.Errorf("%q is not a whole number from 0 to %d; hint: it may be written as 2.0e9", n.Value, int64(1<<60))
	}
	*v = Number(f)
	return nil
}

// Duration is a time such as 8h or 30m.
type Duration time.Duration

// UnmarshalYAML reads Go's notation.
func (t *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not a duration above 0; hint: use one such as 8h or 30m", n.Value)
	}
	*t = Duration(v)
	return nil
}

// MarshalYAML writes the notation that is read, and nothing for no limit.
func (t Duration) MarshalYAML() (any, error) {
	if t == 0 {
		return nil, nil
	}
	return time.Duration(t).String(), nil
}

// Counts is one number or a list of them.
type Counts []int

// UnmarshalYAML takes a scalar for a list of one.
func (v *Counts) UnmarshalYAML(n *yaml.Node) error {
	var one int
	err := n.Decode((*[]int)(v))
	if n.Kind == yaml.ScalarNode {
		err = n.Decode(&one)
		*v = Counts{one}
	}
	if err != nil {
		return errors.New("expected a number or a list of numbers; hint: such as 8, or [4, 2]")
	}
	return nil
}
