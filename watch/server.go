package watch

import (
	"context"
	"crypto/subtle"
	"embed"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

//go:embed page
var page embed.FS

// Options say who may ask.
type Options struct {
	Key string // those who ask must have it; "": none is needed, and then only this machine's own names lead here
}

// Bounds of what requests may take.
const (
	mostAsking   = 16 // requests answered at once
	mostWatching = 32 // pages that are told of changes
	headerBytes  = 16 << 10
	headerTime   = 10 * time.Second
	writeTime    = time.Minute
	graceTime    = time.Second // to end requests when the server is told to stop
)

// Server answers requests for the page and for what it shows.
type Server struct {
	Options
	set      *Set
	mux      *http.ServeMux
	asking   chan struct{}
	watching chan struct{}
	done     chan struct{} // closed when the server is told to stop
}

// New returns a server of the runs.
func New(set *Set, o Options) *Server {
	s := &Server{Options: o, set: set, mux: http.NewServeMux(), asking: make(chan struct{}, mostAsking), watching: make(chan struct{}, mostWatching), done: make(chan struct{})}
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	s.mux.Handle("GET /", http.FileServerFS(files))
	s.mux.HandleFunc("GET /api/runs", s.bounded(s.listRuns))
	s.mux.HandleFunc("GET /api/series", s.bounded(s.series))
	s.mux.HandleFunc("GET /api/step", s.bounded(s.step))
	s.mux.HandleFunc("GET /api/samples", s.bounded(s.samples))
	s.mux.HandleFunc("GET /api/roof", s.bounded(s.roof))
	s.mux.HandleFunc("GET /api/roof.svg", s.bounded(s.roofPicture))
	s.mux.HandleFunc("GET /api/changes", s.changes)
	s.mux.HandleFunc("GET /metrics", s.bounded(s.metrics))
	return s
}

// Serve serves until the context ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: headerBytes}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		close(s.done)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP answers those who may ask.
//
// Who has no key is on this machine, but so is every page that its browser shows. Such a page gets nothing: it has an
// Origin that is not ours, or, once its name has been made to lead here (DNS rebinding), a Host that is not.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	switch {
	case !sameOrigin(r):
		http.Error(w, "this is not for other sites' pages", http.StatusForbidden)
	case s.Key == "" && !isLocal(r.Host):
		http.Error(w, "this is at localhost only; hint: forward the port with ssh -L, or listen on another address, with a key", http.StatusForbidden)
	case s.Key != "" && r.URL.Path == "/" && r.URL.Query().Has("key"):
		s.enter(w, r)
	case s.Key != "" && !s.has(bearer(r)) && !s.has(cookie(r)):
		http.Error(w, "the key is missing or wrong; hint: open the address that was printed, with ?key=..., or send the header Authorization: Bearer KEY", http.StatusUnauthorized)
	default:
		r.Body = http.MaxBytesReader(w, r.Body, 0) // nobody needs to send one
		s.mux.ServeHTTP(w, r)
	}
}

// cookieName is what browsers keep the key by.
const cookieName = "athanor_watch"

// enter lets a browser keep the key that is in the address, and leads it to the address without.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	if !s.has(key) {
		http.Error(w, "the key is wrong", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: key, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// has reports whether this is the key.
func (s *Server) has(key string) bool {
	return subtle.ConstantTimeCompare([]byte(key), []byte(s.Key)) == 1
}

func bearer(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

func cookie(r *http.Request) string {
	if c, err := r.Cookie(cookieName); err == nil {
		return c.Value
	}
	return ""
}

// sameOrigin reports whether a request comes from our own page, from a user, or from a program that is no browser.
func sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "same-origin" || site == "none" || r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/"
}

// isLocal reports whether a host, with or without a port, is a name or address of this machine that no one else can
// make lead here.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}

// bounded is a handler of which not too many run at once.
func (s *Server) bounded(answer func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.asking <- struct{}{}:
			defer func() { <-s.asking }()
		case <-r.Context().Done():
			return
		}
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
		s.set.refresh()
		if err := answer(w, r); err != nil {
			code := http.StatusInternalServerError
			var bad *badRequest
			if errors.As(err, &bad) {
				code = bad.code
			}
			http.Error(w, err.Error(), code)
		}
	}
}

// badRequest is what is wrong with a request.
type badRequest struct {
	code int
	text string
}

func (b *badRequest) Error() string { return b.text }

// changes tells a page whenever there is something new, as server-sent events.
func (s *Server) changes(w http.ResponseWriter, r *http.Request) {
	select {
	case s.watching <- struct{}{}:
		defer func() { <-s.watching }()
	default:
		http.Error(w, "too many pages are open", http.StatusTooManyRequests)
		return
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for told := -1; ; {
		s.set.refresh()
		now := s.set.changed()
		text := ": nothing new\n\n" // which finds out that nobody reads
		if now != told {
			text = "data: changed\n\n"
		}
		told = now
		control.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := w.Write([]byte(text)); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		}
	}
}
