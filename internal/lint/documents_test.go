package lint

import (
	"bytes"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// longest is how many bytes a document may have that somebody reads from its beginning to its end.
var longest = map[string]int{"README.md": 12000, "ARCHITECTURE.md": 15000}

// Documents with the names of files and functions, which are held to them.
var mapped = []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/where.md", "docs/decisions/*.md"}

var (
	quoted  = regexp.MustCompile("`([^`\n]+)`")
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	inside  = regexp.MustCompile(`^[\w*-]+(/[\w.*{},-]+)+/?$|^[\w*-]+\.(go|sh|py|md|cu|cuh|json)$`)
	word    = regexp.MustCompile(`^[\pL_]\w*$`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// documents returns the text of the files that match, by path from the root, without what is shown in fences.
func documents(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no such document (%v)", pattern, err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel("../..", p)
			texts[filepath.ToSlash(rel)] = fenced.ReplaceAllString(string(text), "")
		}
	}
	return texts
}

// TestDocuments: documents that are read as a whole are short, and links lead to files and headings that exist.
func TestDocuments(t *testing.T) {
	for name, most := range longest {
		if info, err := os.Stat(filepath.Join("../..", name)); err != nil || info.Size() > int64(most) {
			t.Errorf("%s: more than %d bytes, or not there (%v); hint: figures go to docs/measurements, reasons to docs/decisions", name, most, err)
		}
	}
	all := documents(t, "*.md", "docs/*.md", "docs/*/*.md")
	for name, text := range all {
		for _, link := range linked.FindAllStringSubmatch(text, -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link[1], "#")
			if file = path.Join(path.Dir(name), file); strings.HasPrefix(link[1], "#") {
				file = name
			}
			if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, link[1])
			} else if anchor != "" && !hasHeading(all[file], anchor) {
				t.Errorf("%s: %s has no heading for the link %s", name, file, link[1])
			}
		}
	}
}

// hasHeading reports whether a heading of text has this anchor, as GitHub makes them.
func hasHeading(text, anchor string) bool {
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		a := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(h[1]), "")
		if strings.ReplaceAll(a, " ", "-") == anchor {
			return true
		}
	}
	return false
}

// TestDocumentedPaths: files and packages that documents name exist.
func TestDocumentedPaths(t *testing.T) {
	for name, text := range documents(t, mapped...) {
		for _, q := range quoted.FindAllStringSubmatch(text, -1) {
			if inside.MatchString(q[1]) && strings.Contains(q[1], "/") && !exists(q[1]) {
				t.Errorf("%s names %s, which does not exist", name, q[1])
			}
		}
	}
}

func exists(p string) bool {
	found, err := filepath.Glob(filepath.Join("../..", p))
	return err == nil && len(found) > 0
}

// TestDocumentedNames: what a row of a table says is in a file is declared there. Cells read "`name`, `name` in
// `path`; `path`; ...": between semicolons, words are names that one of the paths has.
func TestDocumentedNames(t *testing.T) {
	declared := map[string][]string{} // by file, and by folder
	for _, s := range sources(t) {
		names := declarations(s.file)
		declared[s.path] = append(declared[s.path], names...)
		declared[path.Dir(s.path)] = append(declared[path.Dir(s.path)], names...)
	}
	checked := 0
	for name, text := range documents(t, "ARCHITECTURE.md", "docs/where.md") {
		for line := range strings.Lines(text) {
			cells := strings.Split(strings.TrimSpace(line), "|")
			if len(cells) < 4 || cells[0] != "" {
				continue
			}
			for clause := range strings.SplitSeq(cells[len(cells)-2], ";") {
				var paths, names []string
				for _, q := range quoted.FindAllStringSubmatch(clause, -1) {
					switch p := strings.TrimSuffix(q[1], "/"); {
					case exists(p):
						paths = append(paths, p)
					case word.MatchString(p):
						names = append(names, p)
					}
				}
				for _, n := range names {
					checked++
					if !anyHas(declared, paths, n) {
						t.Errorf("%s: %s is not declared in %v:\n%s", name, n, paths, strings.TrimSpace(line))
					}
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d names were found in tables", checked)
	}
}

// anyHas reports whether one of the paths declares the name; in files that are not Go, whether the word occurs.
func anyHas(declared map[string][]string, paths []string, name string) bool {
	for _, p := range paths {
		for _, d := range declared[p] {
			if d == name {
				return true
			}
		}
		if text, err := os.ReadFile(filepath.Join("../..", p)); err == nil && !strings.HasSuffix(p, ".go") && bytes.Contains(text, []byte(name)) {
			return true
		}
	}
	return false
}

// declarations are the names that a file declares outside functions: functions, methods, types, fields, values.
func declarations(f *ast.File) (names []string) {
	add := func(list ...*ast.Ident) {
		for _, id := range list {
			names = append(names, id.Name)
		}
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			add(fn.Name)
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				add(n.Name)
			case *ast.ValueSpec:
				add(n.Names...)
			case *ast.Field:
				add(n.Names...)
			}
			return true
		})
	}
	return names
}
