package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
)

// TestStored: a checkpoint has every number of the run, in as many bytes as the run keeps it in: 12, 8 or 6 per trained parameter.
// The estimate before it is written is the same.
func TestStored(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	halves, moments := " precision=bf16 optimizer_state=bf16", " optimizer_state=bf16_moments"
	check(t, trainFile(t.Context(), file, strings.Fields("max_steps=1 out="+dir+"/from"+halves)))
	for n, c := range []struct {
		overrides       string
		trained, frozen int64 // bytes per parameter
		dtype           string
	}{
		{"", 12, 0, "float32"},
		{moments, 8, 0, "float32"},
		{" precision=bf16", 12, 0, "float32"},
		{" precision=bf16" + moments, 8, 0, "float32"},
		{halves, 6, 0, "bfloat16"},
		{halves + " freeze=\"*.mlp.*\"", 6, 4, "float32"}, // random ones, rounded in the arenas only
		{halves + " freeze=\"*.mlp.*\" model=" + dir + "/from/checkpoint-1", 6, 2, "bfloat16"},
		{" precision=bf16 freeze=\"*.mlp.*\" model=" + dir + "/from/checkpoint-1", 12, 4, "float32"},
		{halves + ` model={"type":"gpt_neox","layers":2,"width":32,"heads":4}`, 6, 0, "bfloat16"}, // another order in files
		{halves + ` lora={"rank":2} model=` + dir + "/from/checkpoint-1", 6, 0, ""},
	} {
		t.Run(strings.TrimSpace(c.overrides), func(t *testing.T) {
			out := fmt.Sprintf("%s/%d", dir, n)
			tr, _ := openRun(t, file, strings.Fields("max_steps=2 out="+out+c.overrides)...)
			defer func() { check(t, tr.Close()) }()
			check(t, tr.Train(t.Context(), quiet{}))
			ck, err := checkpoint.Open(checkpoint.Disk{}, out+"/checkpoint-2")
			check(t, err)
			defer ck.Close()
			var want, got int64
			for i, p := range tr.Setup.Graph.Params {
				if !tr.Setup.saves(p) {
					continue
				}
				want += p.Elems() * c.trained
				if p.Frozen {
					want += p.Elems() * (c.frozen - c.trained)
				}
				for kind, set := range map[optimizer.Kind]*safetensors.Set{optimizer.Weights: ck.Weights, optimizer.FirstMoment: ck.State("m"), optimizer.SecondMoment: ck.State("v")} {
					if p.Frozen {
						continue
					}
					held, stored := make([]float32, p.Elems()), make([]float32, p.Elems())
					check(t, errors.Join(tr.Session.Read(i, kind, held), folder.ReadParam(set, p, 0, stored)))
					if !slices.Equal(held, stored) {
						t.Errorf("%s of %s: the checkpoint has other numbers than the run", kind, p.Name)
					}
				}
			}
			for _, set := range []*safetensors.Set{ck.Weights, ck.State("m"), ck.State("v")} {
				for _, tensor := range set.Tensors() {
					got += tensor.Bytes()
				}
			}
			snapshot := checkpoint.Snapshot{Weights: tr.tensors(optimizer.Weights), State: tr.moments()}
			if got != want || snapshot.Bytes() != want {
				t.Errorf("%d bytes, %d reckoned with, want %d", got, snapshot.Bytes(), want)
			}
			if c.dtype == "" {
				return // the folder of an adapter, whose files say it
			}
			var config map[string]any
			text, err := os.ReadFile(out + "/checkpoint-2/config.json")
			check(t, errors.Join(err, json.Unmarshal(text, &config)))
			if config["torch_dtype"] != c.dtype && config["dtype"] != c.dtype {
				t.Errorf("config.json: torch_dtype %v, dtype %v, want %s", config["torch_dtype"], config["dtype"], c.dtype)
			}
		})
	}
}

// TestOlderStored: checkpoints once had everything in fp32, even of runs in bf16. Such a run resumes, to the same bits.
func TestOlderStored(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	overrides := strings.Fields("max_steps=4 save_every=2 precision=bf16 optimizer_state=bf16 out=" + dir)
	check(t, trainFile(t.Context(), file, append(overrides, "out="+dir+"/run")))
	ck, err := checkpoint.Open(checkpoint.Disk{}, dir+"/run/checkpoint-2")
	check(t, err)
	wide := func(set *safetensors.Set) (list []safetensors.Tensor) {
		for _, info := range set.Tensors() {
			info.DType = safetensors.F32
			list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error {
				values := make([]float32, info.Elements())
				return errors.Join(set.ReadFloat32(info.Name, 0, values), safetensors.WriteFloat32(w, info.DType, values))
			}})
		}
		return list
	}
	files, err := checkpoint.ModelFiles(dir + "/run/checkpoint-2")
	check(t, err)
	older := checkpoint.Store{Dir: dir + "/older"}
	_, err = older.Save(&checkpoint.Snapshot{Trainer: ck.Trainer, Weights: wide(ck.Weights), Files: files,
		State: []checkpoint.Group{{Name: "m", Tensors: wide(ck.State("m"))}, {Name: "v", Tensors: wide(ck.State("v"))}}})
	check(t, errors.Join(err, ck.Close()))
	check(t, trainFile(t.Context(), file, append(overrides, "out="+dir+"/older")))
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		a, err := os.ReadFile(filepath.Join(dir, "run/checkpoint-4", name))
		check(t, err)
		b, err := os.ReadFile(filepath.Join(dir, "older/checkpoint-4", name))
		check(t, err)
		if string(a) != string(b) {
			t.Errorf("%s is another than in a run that had bf16 all along", name)
		}
	}
}
