package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/crashfs"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// memFS adapts a crashfs to FS.
type memFS struct{ *crashfs.FS }

func (m memFS) Create(path string) (File, error) {
	w, err := m.FS.Create(path)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (m memFS) Open(path string) (Source, error) {
	r, err := m.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return r, nil
}

const runDir = "/runs/first"

func storeOn(f *crashfs.FS) *Store { return &Store{Dir: runDir, FS: memFS{f}} }

// snapshotOf returns a small checkpoint whose numbers all depend on the step.
func snapshotOf(step int64) *Snapshot {
	random := rand.New(rand.NewPCG(uint64(step), 1))
	values := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(random.NormFloat64())
		}
		return v
	}
	shapes := []struct {
		name  string
		shape []int
	}{{"wte.weight", []int{5, 3}}, {"ln.bias", []int{3}}, {"h.0.weight", []int{3, 7}}}
	s := &Snapshot{
		Trainer: Trainer{
			Step: step, Tokens: step * 1024, Cursor: json.RawMessage(`{"epoch":1,"at":9007199254740993}`),
			Losses: []float64{math.Pi, 1e-300}, Plan: json.RawMessage(`{"hash":"abc"}`),
		},
		State: []Group{{Name: "m"}, {Name: "v"}, {Name: "master"}},
		Files: map[string][]byte{"config.json": []byte(`{"model_type": "gpt2"}`), "tokenizer.json": []byte("{}")},
	}
	for _, x := range shapes {
		t := safetensors.Float32s(x.name, safetensors.BF16, x.shape, nil)
		v := values(t.Elements())
		s.Weights = append(s.Weights, safetensors.Float32s(x.name, safetensors.BF16, x.shape, v))
		for i := range s.State {
			if s.State[i].Name != "master" {
				v = values(t.Elements())
			}
			s.State[i].Tensors = append(s.State[i].Tensors, safetensors.Float32s(x.name, safetensors.F32, x.shape, v))
		}
	}
	return s
}

// sameAs checks that an opened checkpoint holds a snapshot, bit for bit.
func sameAs(t *testing.T, fsys FS, path string, want *Snapshot) {
	t.Helper()
	c, err := Open(fsys, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, _ := json.Marshal(c.Trainer)
	expected, _ := json.Marshal(want.Trainer)
	if !bytes.Equal(got, expected) {
		t.Errorf("trainer %s, want %s", got, expected)
	}
	sameTensors(t, c.Weights, want.Weights)
	for _, g := range want.State {
		sameTensors(t, c.State(g.Name), g.Tensors)
	}
	for name, text := range want.Files {
		if got, err := readSmall(fsys, filepath.Join(path, name)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func sameTensors(t *testing.T, set *safetensors.Set, want []safetensors.Tensor) {
	t.Helper()
	if set == nil || len(set.Tensors()) != len(want) {
		t.Fatalf("%+v, want %d tensors", set, len(want))
	}
	for _, w := range want {
		var data bytes.Buffer
		if err := w.Data(&data); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, w.Bytes())
		if err := set.ReadBytes(w.Name, 0, got); err != nil || !bytes.Equal(got, data.Bytes()) {
			t.Errorf("%s differs (%v)", w.Name, err)
		}
	}
}

func mustSave(t *testing.T, s *Store, step int64) string {
	t.Helper()
	path, err := s.Save(snapshotOf(step))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// verify checks a checkpoint completely.
func verify(fsys FS, path string) error {
	_, err := check(fsys, path, Checksums)
	return err
}

func wantLatest(t *testing.T, s *Store, step int64, skipped int) {
	t.Helper()
	path, notes, err := s.Latest(Checksums)
	if step < 0 {
		if !errors.Is(err, ErrNone) {
			t.Errorf("latest %q, %v, want none", path, err)
		}
		return
	}
	if err != nil || path != filepath.Join(s.Dir, Folder(step)) || len(notes) != skipped {
		t.Errorf("latest %q, skipped %v, %v, want step %d after %d", path, notes, err, step, skipped)
	}
}

func TestSaveOnDisk(t *testing.T) {
	s := &Store{Dir: filepath.Join(t.TempDir(), "a", "b"), Keep: 2, ShardBytes: 50}
	wantLatest(t, s, -1, 0)
	for step := range int64(4) {
		path := mustSave(t, s, step*7)
		if err := verify(Disk{}, path); err != nil {
			t.Error(err)
		}
		sameAs(t, Disk{}, path, snapshotOf(step*7))
		wantLatest(t, s, step*7, 0)
		if _, err := safetensors.OpenFolder(path); err != nil {
			t.Error(err)
		}
	}
	names, err := Disk{}.ReadDir(s.Dir)
	if err != nil || !slices.Equal(names, []string{"checkpoint-14", "checkpoint-21"}) {
		t.Errorf("left: %q, %v", names, err)
	}
	files, err := ModelFiles(filepath.Join(s.Dir, "checkpoint-21"))
	if err != nil || len(files) != 2 || string(files["tokenizer.json"]) != "{}" {
		t.Errorf("model files %q, %v", files, err)
	}
}

// After a crash before any operation of a save, whatever the disk then holds, Latest finds the old or the new checkpoint
// whole; after a save has returned, the new one. The next save works.
func TestCrashAnywhere(t *testing.T) {
	seed := testkit.Seed(t)
	scenarios := []struct {
		name   string
		keep   int
		before []int64
		damage string // a file damaged beforehand
		old    int64  // the step found if the save fails
	}{
		{name: "first", keep: 1, old: -1},
		{name: "second", keep: 0, before: []int64{5}, old: 5},
		{name: "keep one", keep: 1, before: []int64{5}, old: 5},
		{name: "keep two", keep: 2, before: []int64{3, 4, 5}, old: 5},
		{name: "in place of a broken one", keep: 1, before: []int64{5, 10}, damage: "/checkpoint-10/model.safetensors", old: 5},
	}
	for number, c := range scenarios {
		for operation := 1; ; operation++ {
			random := rand.New(rand.NewPCG(seed, uint64(number*10000+operation)))
			disk := crashfs.New()
			s := storeOn(disk)
			for _, step := range c.before {
				mustSave(t, s, step)
			}
			if c.damage != "" {
				if err := disk.Change(runDir+c.damage, flip(random)); err != nil {
					t.Fatal(err)
				}
			}
			disk.FailFrom(disk.Ops() + operation)
			s.Keep = c.keep
			path, err := s.Save(snapshotOf(10))
			if path == "" && !errors.Is(err, crashfs.ErrCrashed) {
				t.Fatal(err)
			}
			for range 4 {
				after := storeOn(disk.Crash(random))
				after.Keep = 1
				found, _, latestErr := after.Latest(Checksums)
				switch {
				case latestErr == nil && found == runDir+"/checkpoint-10":
					sameAs(t, after.FS, found, snapshotOf(10))
				case path != "":
					t.Fatalf("%s, operation %d: saved, but %q is found (%v)", c.name, operation, found, latestErr)
				case c.old < 0 && errors.Is(latestErr, ErrNone):
				case latestErr == nil && found == filepath.Join(runDir, Folder(c.old)):
					sameAs(t, after.FS, found, snapshotOf(c.old))
				default:
					t.Fatalf("%s, operation %d: %q is found, %v", c.name, operation, found, latestErr)
				}
				mustSave(t, after, 11)
				wantLatest(t, after, 11, 0)
				for _, file := range after.FS.(memFS).Files() {
					if strings.Contains(file, tempPrefix) {
						t.Fatalf("%s, operation %d: %s is left", c.name, operation, file)
					}
				}
			}
			if err == nil {
				break
			}
		}
	}
}

// An operation that fails without a crash gives an error, and the old checkpoint stays; a second try succeeds.
func TestFailAnywhere(t *testing.T) {
	for operation := 1; ; operation++ {
		disk := crashfs.New()
		s := storeOn(disk)
		s.Keep = 1
		mustSave(t, s, 5)
		disk.FailOnce(disk.Ops()+operation, syscall.EIO)
		last := disk.Ops() + operation
		path, err := s.Save(snapshotOf(10))
		if disk.Ops() < last {
			if err != nil || operation < 50 {
				t.Fatalf("a save of %d operations: %v", operation, err)
			}
			break
		}
		disk.FailOnce(0, nil)
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatalf("operation %d: %v", operation, err)
		}
		if path != "" { // only the removal of the older one failed
			wantLatest(t, s, 10, 0)
		}
		if path == "" {
			if err := verify(s.FS, runDir+"/checkpoint-5"); err != nil {
				t.Fatalf("operation %d: the old checkpoint: %v", operation, err)
			}
		}
		if again, err := s.Save(snapshotOf(10)); err != nil || again != runDir+"/checkpoint-10" {
			t.Fatalf("operation %d: a second try: %v", operation, err)
		}
		wantLatest(t, s, 10, 0)
	}
}

func TestFullDisk(t *testing.T) {
	disk := crashfs.New()
	s := storeOn(disk)
	s.Keep = 1
	mustSave(t, s, 5)
	size := int64(0)
	for _, name := range disk.Files() {
		r, err := disk.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		size += r.Size()
	}
	for _, capacity := range []int64{size, size + 1, size + size/2, 2*size - 60} {
		disk.Capacity = capacity
		path, err := s.Save(snapshotOf(10))
		if path != "" || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("capacity %d of %d: %q, %v", capacity, 2*size, path, err)
		}
		wantLatest(t, s, 5, 0)
	}
	disk.Capacity = 2*size + 100
	mustSave(t, s, 10)
	wantLatest(t, s, 10, 0)
}

func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "run")} {
		s := &Store{Dir: dir}
		if path, err := s.Save(snapshotOf(1)); path != "" || err == nil || !strings.Contains(err.Error(), "hint: out must be") {
			t.Errorf("%s: %q, %v", dir, path, err)
		}
	}
	disk := crashfs.New()
	disk.FailOnce(4, fs.ErrPermission)
	if _, err := storeOn(disk).Save(snapshotOf(1)); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("no permission: %v", err)
	}
}

func flip(random *rand.Rand) func([]byte) []byte {
	return func(b []byte) []byte { b[random.IntN(len(b))] ^= 1 << random.IntN(8); return b }
}

// Damage of any file is found, reported with its name, and affects only that checkpoint.
func TestDamage(t *testing.T) {
	seed := testkit.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	files := func(f *crashfs.FS) []string {
		return slices.DeleteFunc(f.Files(), func(n string) bool { return !strings.Contains(n, "checkpoint-10/") })
	}
	edits := []struct {
		name     string
		bySize   bool // found by sizes alone
		edit     func([]byte) []byte
		repeated int
	}{
		{"flipped bit", false, flip(random), 20},
		{"truncated", true, func(b []byte) []byte { return b[:random.IntN(len(b))] }, 3},
		{"longer", true, func(b []byte) []byte { return append(b, ' ') }, 1},
		{"zeros", false, func(b []byte) []byte { return make([]byte, len(b)) }, 1},
	}
	disk := crashfs.New()
	whole := storeOn(disk)
	mustSave(t, whole, 5)
	mustSave(t, whole, 10)
	names := files(disk)
	if len(names) != 9 {
		t.Fatalf("files %q", names)
	}
	for _, name := range names {
		for _, e := range edits {
			for range e.repeated {
				damaged := disk.Crash(random)
				if err := damaged.Change(name, e.edit); err != nil {
					t.Fatal(err)
				}
				s := storeOn(damaged)
				err := verify(s.FS, runDir+"/checkpoint-10")
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), filepath.Base(name)) {
					t.Errorf("%s, %s: %v", name, e.name, err)
				}
				wantLatest(t, s, 5, 1)
				if path, _, _ := s.Latest(Sizes); e.bySize && path != runDir+"/checkpoint-5" {
					t.Errorf("%s, %s: not found by size", name, e.name)
				}
			}
		}
		damaged := disk.Crash(random)
		if err := damaged.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		if err := verify(memFS{damaged}, runDir+"/checkpoint-10"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s removed: %v", name, err)
		}
		if _, err := Open(memFS{damaged}, runDir+"/checkpoint-10"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s removed, opened: %v", name, err)
		}
		wantLatest(t, storeOn(damaged), 5, 1)
	}
}

func TestSameStepAgain(t *testing.T) {
	disk := crashfs.New()
	s := storeOn(disk)
	mustSave(t, s, 5)
	again := snapshotOf(5)
	again.Trainer.Plan, again.Trainer.Best = json.RawMessage(`"another plan"`), &Best{Step: 5, Loss: 1}
	again.Weights[0].Data = nil // must not be called
	if path, err := s.Save(again); err != nil || path != runDir+"/checkpoint-5" {
		t.Errorf("the same state again: %q, %v", path, err)
	}
	again.Trainer.Losses = []float64{1}
	if _, err := s.Save(again); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("another state: %v", err)
	}
	sameAs(t, s.FS, runDir+"/checkpoint-5", snapshotOf(5))
}

// A run resumed from an older checkpoint saves steps that are not the newest: Keep must not remove them.
func TestKeepNeverRemovesWhatWasSaved(t *testing.T) {
	s := storeOn(crashfs.New())
	mustSave(t, s, 20)
	s.Keep = 1
	mustSave(t, s, 10)
	wantLatest(t, s, 10, 0)
}

func TestNamesThatAreNotOurs(t *testing.T) {
	disk := crashfs.New()
	s := storeOn(disk)
	mustSave(t, s, 5)
	for _, name := range []string{"checkpoint-007", "checkpoint-", "checkpoint-+9", "checkpoint--1", "checkpoint-9x",
		"checkpoint-99999999999999999999", "checkpoints-9"} {
		if err := disk.Mkdir(runDir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	wantLatest(t, s, 5, 0)
	if err := disk.Rename(runDir+"/checkpoint-5", runDir+"/checkpoint-6"); err != nil {
		t.Fatal(err)
	}
	if path, skipped, err := s.Latest(Sizes); !errors.Is(err, ErrNone) || len(skipped) != 1 || !strings.Contains(skipped[0].Error(), "step 5") {
		t.Errorf("renamed: %q, %v, %v", path, skipped, err)
	}
}

func TestSnapshotRefused(t *testing.T) {
	cases := []struct {
		name string
		edit func(*Snapshot)
	}{
		{"negative step", func(s *Snapshot) { s.Trainer.Step = -1 }},
		{"NaN", func(s *Snapshot) { s.Trainer.Losses[0] = math.NaN() }},
		{"infinite", func(s *Snapshot) { s.Trainer.Losses[0] = math.Inf(-1) }},
		{"cursor is not JSON", func(s *Snapshot) { s.Trainer.Cursor = json.RawMessage(`{`) }},
		{"group outside", func(s *Snapshot) { s.State[0].Name = "../m" }},
		{"two groups", func(s *Snapshot) { s.State[0].Name = "v" }},
		{"file outside", func(s *Snapshot) { s.Files["../x"] = nil }},
		{"file over ours", func(s *Snapshot) { s.Files["DONE"] = nil }},
		{"file over the weights", func(s *Snapshot) { s.Files["model.safetensors"] = nil }},
		{"two tensors of a name", func(s *Snapshot) { s.Weights[0].Name = s.Weights[1].Name }},
		{"data too short", func(s *Snapshot) { s.Weights[0].Shape = []int{100} }},
	}
	for _, c := range cases {
		disk := crashfs.New()
		snapshot := snapshotOf(5)
		c.edit(snapshot)
		if path, err := storeOn(disk).Save(snapshot); path != "" || err == nil {
			t.Errorf("%s: saved as %q", c.name, path)
		}
		if files := disk.Files(); len(files) > 0 && !slices.Equal(files, []string{runDir}) {
			t.Errorf("%s: left %q", c.name, files)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"format":1,"step":5,"files":[{"path":"trainer_state.json","bytes":2,"crc32c":"00000000"}]}`))
	f.Add([]byte(`{"format":1,"step":5,"files":[{"path":"../../etc/passwd","bytes":2}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest(text, doneText(5, text))
		if err != nil {
			return
		}
		for _, entry := range m.Files {
			if !filepath.IsLocal(entry.Path) {
				t.Errorf("%q is outside", entry.Path)
			}
		}
	})
}

// Compare with the disk's speed for the same bytes (dd conv=fsync).
func BenchmarkSaveAndLoad(b *testing.B) {
	values := make([]float32, 16<<20)
	for i := range values {
		values[i] = float32(i)
	}
	tensors := []safetensors.Tensor{safetensors.Float32s("w", safetensors.F32, []int{len(values)}, values)}
	s := &Store{Dir: b.TempDir(), Keep: 1}
	step := int64(0)
	save := func(b *testing.B) string {
		step++
		path, err := s.Save(&Snapshot{Trainer: Trainer{Step: step}, Weights: tensors})
		if err != nil {
			b.Fatal(err)
		}
		return path
	}
	kept := save(b)
	for _, c := range []struct {
		name string
		do   func(b *testing.B)
	}{
		{"save", func(b *testing.B) { kept = save(b) }},
		{"verify", func(b *testing.B) {
			if err := verify(Disk{}, kept); err != nil {
				b.Fatal(err)
			}
		}},
		{"load", func(b *testing.B) {
			c, err := Open(Disk{}, kept)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			if err := c.Weights.ReadFloat32("w", 0, values); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(4 * len(values)))
			for b.Loop() {
				c.do(b)
			}
		})
	}
}
