// Package lint has the machine-checkable rules of this repository, as tests: what
// may import what and why, and the format of files.
package lint

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

const module = "github.com/athanor-llm/athanor/"

// layers is the order of the packages: imports go down this list only. An entry
// includes the package's subfolders. The reason says what would be lost in another
// position.
var layers = []struct{ pkg, why string }{
	{"cmd", "flags and printing, nothing else: everything can be used without it"},
	{"internal/cli", "what commands have in common: nothing below knows of flags, standard output and exit codes"},
	{"lab", "reproduces papers and compares; it may use everything, and nothing that runs may need it"},
	{"bench", "measures and compares; no run depends on a benchmark"},
	{"watch", "shows runs from their folders' files alone, so that it works after them and beside them: it knows no run but as files"},
	{"train", "a training run joins text, plan, session and checkpoints; nothing below knows that a run exists"},
	{"api", "a model over HTTP, as OpenAI's API has it; nothing below knows of HTTP"},
	{"generation", "many texts at once: requests, sampling, files of prompts; a model's folder needs none of it"},
	{"folder", "a model's files and what one does with them; whoever opens a folder needs no training run"},
	{"planner", "jobs to plans for a machine; what executes must not know who planned"},
	{"job", "a configuration settled on a machine, the one place that decides what was left open; what is below gets plain values"},
	{"cluster", "processes that a launcher has started become one run; what plans and trains gets the addresses of the others"},
	{"machine", "what is here, or described; it gives numbers and devices, and knows of no plan"},
	{"config", "what a user wrote; only machines, jobs and verbs know of files and keys, compilers get values"},
	{"session", "a model on devices: programs, state and steps, by values only; it decides nothing"},
	{"exec", "executes programs and decides nothing, so it may not see plans or searches"},
	{"search", "searches by lowering and simulating; what executes must not depend on how a plan was found"},
	{"policy", "how others decide, to be compared with: from graphs and rates to plans, without searching or simulating"},
	{"roofline", "what binds a step, from programs and prices; it decides nothing"},
	{"collocate", "several jobs on one card, from their programs and prices; whoever asks it plans"},
	{"draw", "pictures of timelines and programs"},
	{"golden", "what programs need, as a file to compare with; it asks programs only"},
	{"sim", "simulates the very programs that are executed; it must not import what executes them"},
	{"hardware", "prices calls; probing uses devices, never programs"},
	{"verify", "proves programs from their text alone: a proof that shared code with the lowering would share its mistakes"},
	{"lower", "plans to instructions, pass by pass; it decides nothing and knows no clock and no backend"},
	{"internal/samples", "graphs and plans drawn for tests of all above"},
	{"plan", "the decisions as a value; it knows neither how they were found nor what becomes of them"},
	{"program", "instructions, buffers and their text; knows tiers and streams, nobody who makes, proves or runs them"},
	{"schedule", "orders of work, pure"},
	{"prune", "which weights of a matrix go, and what becomes of the others: arithmetic on slices, whoever has them"},
	{"advise", "which model to train in a given time: functions of losses and speeds, whoever measures these"},
	{"alloc", "the static allocation problem, usable on its own"},
	{"device", "the border: calls on operands; backends stand below their interface's package"},
	{"kernel", "operators on slices; no tiers, no streams"},
	{"optimizer", "rules of updates, a row each; what plans, lowers, proves, runs and saves them follows the rows"},
	{"graph", "operators as data, autodiff"},
	{"alert", "which numbers of a run are unusual: functions of numbers, whoever has these"},
	{"internal/torch", "what PyTorch computed, for tests of all above"},
	{"model", "architectures as data"},
	{"data", "text to batches; knows no model"},
	{"checkpoint", "files of tensors, and folders that are whole or not there; knows no model"},
	{"internal", "small helpers without opinions"},
}

func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l struct{ pkg, why string }) bool {
		return pkg == l.pkg || strings.HasPrefix(pkg, l.pkg+"/")
	})
}

// exceptions are permitted upward imports, with the reason.
var exceptions = map[string]string{}

// walls are imports that the order of layers would permit.
var walls = []struct{ from, to, why string }{
	{"verify", "lower", "verification shares no code with the lowering: it would share its mistakes"},
	{"verify", "plan", "a program is proved as it stands, whatever was meant by it"},
	{"exec", "plan", "an executor that sees decisions begins to decide"},
	{"exec", "lower", "programs are executed as they are given"},
	{"session", "data", "a session gets numbers; what the tokens of a text mean is said once, where its batches are made"},
	{"sim", "plan", "what is simulated is what is executed: the program"},
}

// source is a parsed file of the repository.
type source struct {
	path string // from the root, with slashes
	text []byte
	file *ast.File
	set  *token.FileSet
}

// parseAll parses the repository once for all tests, which only read it.
var parseAll = sync.OnceValues(func() ([]source, error) {
	root := "../.."
	var list []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "runs") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		list = append(list, source{filepath.ToSlash(rel), text, f, set})
		return err
	})
	return list, err
})

func sources(t *testing.T) []source {
	t.Helper()
	list, err := parseAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 50 {
		t.Fatalf("only %d files found", len(list))
	}
	return list
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		from := filepath.ToSlash(filepath.Dir(s.path))
		if strings.HasSuffix(s.path, "_test.go") || from == "." {
			continue
		}
		at := layerOf(from)
		if at < 0 {
			t.Errorf("%s: package %s has no place in the order of layers; give it one, with the reason", s.path, from)
			continue
		}
		for _, spec := range s.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			to, ours := strings.CutPrefix(path, module)
			if !ours {
				continue
			}
			for _, w := range walls {
				if from == w.from && to == w.to {
					t.Errorf("%s imports %s: %s", s.path, to, w.why)
				}
			}
			if down := layerOf(to); down < at && exceptions[from+" -> "+to] == "" {
				t.Errorf("%s imports %s, which stands above it: %s", s.path, to, layers[down].why)
			}
		}
	}
}

// TestLaboratory: nothing depends on the laboratory but its command, tests included: what athanor runs is complete
// without it, and what compares others with it may change without changing a run.
func TestLaboratory(t *testing.T) {
	within := func(pkg string) bool {
		return pkg == "cmd/athanor-lab" || pkg == "lab" || strings.HasPrefix(pkg, "lab/")
	}
	for _, s := range sources(t) {
		for _, spec := range s.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if to, ours := strings.CutPrefix(path, module); ours && within(to) && !within(filepath.ToSlash(filepath.Dir(s.path))) {
				t.Errorf("%s imports %s, which belongs to the laboratory", s.path, to)
			}
		}
	}
}

// TestConfigurations: whoever sees a configuration may take for decided what it leaves open, or decide it otherwise. So
// only what reads one and what settles it know the type.
func TestConfigurations(t *testing.T) {
	for _, s := range sources(t) {
		switch pkg := filepath.ToSlash(filepath.Dir(s.path)); {
		case strings.HasSuffix(s.path, "_test.go"), pkg == "config", pkg == "job":
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Config" && isIdent(sel.X, "config") {
				t.Errorf("%s: a configuration is settled by job.Settle, and everybody else gets a job.Spec", s.set.Position(n.Pos()))
			}
			return true
		})
	}
}

// TestJobs: a job never changes. What another package assigns to a field of one would change it for all that hold it.
func TestJobs(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || strings.HasPrefix(s.path, "job/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			assigned, ok := n.(*ast.AssignStmt)
			if !ok {
				return true
			}
			for _, to := range assigned.Lhs {
				for sel, ok := to.(*ast.SelectorExpr); ok; sel, ok = sel.X.(*ast.SelectorExpr) {
					if in, ok := sel.X.(*ast.SelectorExpr); isIdent(sel.X, "spec") || ok && in.Sel.Name == "Spec" {
						t.Errorf("%s: %s of a job is assigned to; hint: job.Spec has methods With... that return another", s.set.Position(n.Pos()), sel.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

func isIdent(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

// TestPictures: pictures are written by package draw/svg, which escapes what they name.
func TestPictures(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.path, "draw/svg/") || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && (strings.Contains(text.Value, "<svg") || strings.Contains(text.Value, "<rect") || strings.Contains(text.Value, "<path")) {
				t.Errorf("%s writes SVG; hint: draw/svg does", s.set.Position(text.Pos()))
			}
			return true
		})
	}
}

// TestDevices: CPU and GPU differ behind one door in package machine; a device's name is compared in one place.
func TestDevices(t *testing.T) {
	isName := func(e ast.Expr) bool {
		text, ok := e.(*ast.BasicLit)
		return ok && text.Value == strconv.Quote("cuda")
	}
	for _, s := range sources(t) {
		if s.path == "device/device.go" || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			compared := false
			switch n := n.(type) {
			case *ast.BinaryExpr:
				compared = isName(n.X) || isName(n.Y)
			case *ast.CaseClause:
				compared = slices.ContainsFunc(n.List, isName)
			}
			if compared {
				t.Errorf("%s: hint: ask device.IsGPU, or put what differs behind machine's backend", s.set.Position(n.Pos()))
			}
			return true
		})
	}
}

// TestOtherSystems: code for systems that no test runs on compiles, including its tests.
func TestOtherSystems(t *testing.T) {
	testkit.Needs(t, testkit.All) // a minute for each
	for _, system := range []string{"darwin/arm64", "windows/amd64", "windows/arm64", "freebsd/amd64"} {
		name, arch, _ := strings.Cut(system, "/")
		for _, args := range [][]string{{"build", "-o", os.DevNull, "./cmd/athanor"}, {"vet", "./..."}} {
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0", "GOOS="+name, "GOARCH="+arch)
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: go %s: %v\n%s", system, args[0], err, text)
			}
		}
	}
}

// TestDraws: tests draw numbers, and do less where little time is allowed, by package testkit only: what they try
// is known, and what failed can be repeated.
func TestDraws(t *testing.T) {
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok {
				if pkg, ok := f.X.(*ast.Ident); ok && pkg.Obj == nil && (pkg.Name == "rand" && !strings.HasPrefix(f.Sel.Name, "New") || pkg.Name == "testing" && f.Sel.Name == "Short" ||
					pkg.Name == "rapid" && f.Sel.Name == "Check") {
					t.Errorf("%s: %s.%s in a test; hint: internal/testkit has Seed, Rand, Check, Count, Sample and Needs", s.set.Position(call.Pos()), pkg.Name, f.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestFiles: files are formatted, of a readable size, and free of unfinished-work
// markers.
func TestFiles(t *testing.T) {
	const longest = 700 // lines
	documented := map[string]bool{}
	for _, s := range sources(t) {
		pkg := filepath.ToSlash(filepath.Dir(s.path))
		if doc := s.file.Doc; doc != nil && len(doc.Text()) > 20 {
			documented[pkg] = true
		} else if _, seen := documented[pkg]; !seen {
			documented[pkg] = false
		}
		if ast.IsGenerated(s.file) {
			continue
		}
		var out bytes.Buffer
		if err := format.Node(&out, s.set, s.file); err != nil || !bytes.Equal(out.Bytes(), s.text) {
			t.Errorf("%s is not formatted; run gofmt", s.path)
		}
		if n := bytes.Count(s.text, []byte("\n")); n > longest {
			t.Errorf("%s has %d lines; more than %d are two things", s.path, n, longest)
		}
		for _, group := range s.file.Comments {
			for _, mark := range []string{"TO" + "DO", "FIX" + "ME", "HA" + "CK"} {
				if strings.Contains(group.Text(), mark) {
					t.Errorf("%s: %s in a comment: do it, or say what is missing", s.set.Position(group.Pos()), mark)
				}
			}
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no doc comment", pkg)
		}
	}
}
