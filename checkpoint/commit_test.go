package checkpoint

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/crashfs"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCommitAnywhere: wherever a power cut interrupts it, a file has its old or its new content and a folder is whole or
// not there; once the call has returned, it is the new one; and the next call leaves nothing behind.
func TestCommitAnywhere(t *testing.T) {
	const dir, file, folder = "/runs", "/runs/plan.json", "/runs/export"
	seed := testkit.Seed(t)
	content := map[string]string{"config.json": "{}", "model.safetensors": strings.Repeat("weights", 5000)}
	write := func(fsys FS) error {
		return WriteFolder(fsys, folder, 1<<16, func(create Create) error {
			for _, name := range slices.Sorted(maps.Keys(content)) {
				w, err := create(name)
				if err == nil {
					_, err = io.WriteString(w, content[name])
					err = errors.Join(err, w.Close())
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	for operation := 1; ; operation++ {
		random := rand.New(rand.NewPCG(seed, uint64(operation)))
		disk := crashfs.New()
		if err := errors.Join(makeDir(memFS{disk}, dir), WriteFile(memFS{disk}, file, []byte("old"))); err != nil {
			t.Fatal(err)
		}
		disk.FailFrom(disk.Ops() + operation)
		fileErr := WriteFile(memFS{disk}, file, []byte("new"))
		folderErr := write(memFS{disk})
		for _, err := range []error{fileErr, folderErr} {
			if err != nil && !errors.Is(err, crashfs.ErrCrashed) {
				t.Fatalf("operation %d: %v", operation, err)
			}
		}
		for range 4 {
			after := memFS{disk.Crash(random)}
			if text, err := readSmall(after, file); err != nil || string(text) != "new" && (fileErr == nil || string(text) != "old") {
				t.Fatalf("operation %d: the file has %q, %v; writing it: %v", operation, text, err, fileErr)
			}
			found := map[string]string{}
			names, err := after.ReadDir(folder)
			for _, name := range names {
				text, err := readSmall(after, path.Join(folder, name))
				if err != nil {
					t.Fatal(err)
				}
				found[name] = string(text)
			}
			if whole := maps.Equal(found, content); !whole && (err == nil || folderErr == nil) {
				t.Fatalf("operation %d: the folder has %d files, %v; writing it: %v", operation, len(found), err, folderErr)
			}
			if err := errors.Join(WriteFile(after, file, []byte("newer")), after.RemoveAll(folder), write(after)); err != nil {
				t.Fatalf("operation %d: a second try: %v", operation, err)
			}
			for _, name := range after.Files() {
				if strings.Contains(name, tempPrefix) {
					t.Fatalf("operation %d: %s is left", operation, name)
				}
			}
		}
		if fileErr == nil && folderErr == nil {
			return
		}
	}
}
