package elixir

import "fmt"

// State is what a parameter in a gathered chunk is doing. The table below is
// what makes a chunk's life safe: it may give way only while nobody computes
// with it, and be reduced only when all of its gradients are final.
type State uint8

const (
	Hold          State = iota // nobody needs it now
	Compute                    // an operator reads it
	HoldAfterBwd               // its gradient was made, but may not be final
	ReadyToReduce              // its place in the chunk holds the final gradient
	numStates
)

var stateNames = [numStates]string{"hold", "compute", "hold after backward", "ready to reduce"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// legal[from][to]; staying is always legal. Once the gradient is final no
// operator may read the parameter again: this is what rules out gradient
// accumulation in the original.
var legal = [numStates][numStates]bool{
	Hold:          {Compute: true},                      // before an operator
	Compute:       {Hold: true, HoldAfterBwd: true},     // after one, forward or backward
	HoldAfterBwd:  {Compute: true, ReadyToReduce: true}, // second use of a tied one; final gradient
	ReadyToReduce: {Hold: true},                         // the chunk was reduced
}

// Move goes from one state to another, or says that it may not.
func (s State) Move(to State) (State, error) {
	if s >= numStates || to >= numStates || s != to && !legal[s][to] {
		return s, fmt.Errorf("elixir: a parameter cannot go from %v to %v", s, to)
	}
	return to, nil
}

// Releasable chunks may give way: nobody computes, and no final gradient is in
// them. (The original forgets the second and can lose gradients.)
func Releasable(params []State) bool {
	for _, s := range params {
		if s == Compute || s == ReadyToReduce {
			return false
		}
	}
	return true
}

// Reducible chunks hold nothing but final gradients.
func Reducible(params []State) bool {
	for _, s := range params {
		if s != ReadyToReduce {
			return false
		}
	}
	return len(params) > 0
}
