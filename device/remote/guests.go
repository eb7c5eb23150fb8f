package remote

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Connections that have not proved yet that they know the key.
//
// There are so many places. Who knows the key needs one for an instant, so whoever has one for long is a
// stranger: if all are taken, the newcomer gets the place of the oldest connection of the address that has
// the most. So neither idle connections nor many of them keep a leader out, and an address that opens many
// displaces its own. Why strangers are refused is told to the log once a minute of each address, and not of endlessly
// many. Known weakness: strangers at as many addresses as there are places, who come faster
// than a leader can prove the key, displace leaders.

const (
	places     = 64
	toldEvery  = time.Minute // that the log is told the same at most
	complaints = 16          // about strangers that it is told in that time
)

type guests struct {
	mu   sync.Mutex
	list []net.Conn // the oldest first
	said time.Time  // when the log was told of a crowd

	since  time.Time       // of what follows
	told   map[string]bool // complaints
	untold int             // connections that were refused, and the log was not told
}

// complain returns what the log is to be told of a stranger who was refused; "": it has been told the like, or enough.
func (g *guests) complain(text string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := 0
	if now := time.Now(); now.Sub(g.since) >= toldEvery {
		before, g.untold = g.untold, 0
		g.since, g.told = now, map[string]bool{}
	}
	if g.told[text] || len(g.told) == complaints {
		g.untold++
		return ""
	}
	g.told[text] = true
	if before > 0 {
		text += fmt.Sprintf(" (before this, %d more connections were refused without a line)", before)
	}
	return text
}

// enter gives a connection a place, and closes the one that had it, if there is none left. told is what
// the log is to say about that; "": nothing.
func (g *guests) enter(c net.Conn) (told string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) == places {
		at, host, n := g.crowd()
		_ = g.list[at].Close()
		g.list = slices.Delete(g.list, at, at+1)
		if now := time.Now(); now.Sub(g.said) >= toldEvery {
			g.said = now
			told = fmt.Sprintf("%d connections have not proved that they know the key, %d of them from %s: the oldest of those gives way to each new one", places, n, host)
		}
	}
	g.list = append(g.list, c)
	return told
}

// crowd returns the oldest connection of the address that has the most, and how many it has.
func (g *guests) crowd() (oldest int, host string, most int) {
	count, first := map[string]int{}, map[string]int{}
	for i, c := range g.list {
		name := hostOf(c)
		if count[name]++; count[name] == 1 {
			first[name] = i
		}
		if count[name] > most {
			oldest, host, most = first[name], name, count[name]
		}
	}
	return oldest, host, most
}

// leave frees a connection's place. It reports false if another has it.
func (g *guests) leave(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.list, c)
	if at >= 0 {
		g.list = slices.Delete(g.list, at, at+1)
	}
	return at >= 0
}
