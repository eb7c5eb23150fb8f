package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/verify"
)

// Folder is a Hugging Face model folder, or the folder of an adapter, opened for
// inference.
type Folder struct {
	Path      string
	Model     *model.Model
	Documents *graph.Documents // confine attention when losses are computed; nil: it is not confined
	Device    string           // on which losses are computed, cpu or cuda
	Limit     int64            // on the bytes of device memory for that; 0: what there is
	DType     graph.DType      // in which losses are computed, fp32 or bf16
	base      string           // the model's folder: Path, unless that is an adapter's
	weights   Source
	tokenizer *bpe.Tokenizer // read on first use
}

// Progress receives the progress of a long operation, named by what.
type Progress func(what string, done, total int64)

// folderHint is the hint for a folder that is no model folder, or an incomplete
// one.
const folderHint = "give a folder with config.json and model.safetensors, such as a checkpoint"

// ErrMisuse reports that a folder lacks what the caller asked for. Defects of its
// files are other errors.
var ErrMisuse = errors.New("misuse")

type misuse struct{ error }

// Misuse makes an error one that is ErrMisuse.
func Misuse(err error) error { return misuse{err} }

func (misuse) Is(target error) bool { return target == ErrMisuse }
func (e misuse) Unwrap() error      { return e.error }

// Open opens the folder of a language model, or an adapter's, or one that paths.Hub knows. Close it after use.
func Open(dir string) (*Folder, error) {
	f, err := OpenAny(dir)
	if err == nil && model.Classifies(f.Model) {
		return nil, errors.Join(misuse{fmt.Errorf("%s has a head with labels (%s), and writes no text; hint: athanor eval %[1]s FILES; other uses are not built", dir, strings.Join(f.Model.Labels[:min(len(f.Model.Labels), 5)], ", "))}, f.Close())
	}
	return f, err
}

// OpenAny is Open, also for models whose heads have labels.
func OpenAny(dir string) (*Folder, error) {
	f, err := open(dir)
	if err != nil {
		return nil, err
	}
	if err := f.weights.Check(f.Model, f.folderOf); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func open(dir string) (*Folder, error) {
	dir = paths.Hub(dir)
	if !IsAdapter(dir) {
		return openModel(dir)
	}
	c, err := readAdapter(dir)
	if err != nil {
		return nil, err
	}
	f, err := openModel(c.Base)
	if err != nil {
		return nil, c.noBase(dir, err)
	}
	if err := f.adapt(dir, c); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// folderOf returns the folder with the weights of a parameter.
func (f *Folder) folderOf(p model.Param) string {
	if p.InAdapter() {
		return f.Path
	}
	return f.base
}

// adapt adds the adapter in a folder.
func (f *Folder) adapt(dir string, c *adapterConfig) (err error) {
	if f.weights.Adapter, err = OpenAdapter(dir); err != nil {
		return err
	}
	f.Path = dir
	if f.Model, f.weights.rows, err = c.adapted(f.Model, f.weights.Adapter); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func openModel(dir string) (*Folder, error) {
	text, err := ReadConfig(dir)
	if err != nil {
		hint := folderHint
		if last, _, err := (&checkpoint.Store{Dir: dir}).Latest(checkpoint.Sizes); err == nil {
			hint = "it is that of a run, whose latest checkpoint is " + last
		} else if paths.IsHub(dir) {
			hint += "; if it is a model of the hub: hf download " + dir
		}
		return nil, misuse{suggest.Add(fmt.Errorf("%s is not a model folder: %w", dir, err), hint)}
	}
	f := &Folder{Path: dir, base: dir}
	if f.Model, _, err = family.Parse(text); err != nil {
		return nil, suggest.Add(fmt.Errorf("%s: %w", dir, err), folderHint)
	}
	f.weights.Base, err = OpenWeights(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, misuse{err}
	case err != nil:
		return nil, err
	}
	return f, nil
}

// maxModel bounds the bytes of a model's config.json.
const maxModel = 1 << 20

// ReadConfig reads the config.json of a folder.
func ReadConfig(dir string) ([]byte, error) {
	return bounded.ReadFile(filepath.Join(dir, "config.json"), maxModel)
}

// OpenWeights opens the weights of a model folder.
func OpenWeights(dir string) (*safetensors.Set, error) {
	if err := checkWhole(dir); err != nil {
		return nil, err
	}
	set, err := safetensors.OpenFolder(dir)
	return set, suggest.Add(err, folderHint)
}

// checkWhole verifies the weights of a folder that is a checkpoint against its manifest, since a damaged copy
// would silently give other results.
func checkWhole(dir string) error {
	if err := checkpoint.CheckWeights(checkpoint.Disk{}, dir); err != nil {
		return fmt.Errorf("%s: %w; hint: copy the checkpoint again, or remove its manifest.json if it was changed on purpose", dir, err)
	}
	return nil
}

// Tokenizer returns the folder's tokenizer, read on first use. Token ids can be
// evaluated without one, even if its kind is not supported.
func (f *Folder) Tokenizer() (*bpe.Tokenizer, error) {
	if f.tokenizer != nil {
		return f.tokenizer, nil
	}
	dir := TokenizerFolder(f.Path)
	if !bpe.HasFiles(dir) {
		return nil, fmt.Errorf("%s has no tokenizer.json; hint: copy its tokenizer.json there, or its tokenizer.model, or its vocab.json and merges.txt", f.Path)
	}
	var err error
	f.tokenizer, err = bpe.Load(dir)
	return f.tokenizer, err
}

// Chat returns the folder's chat template; nil: there is none.
func (f *Folder) Chat() (*chat.Template, error) {
	t, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	return OpenTemplate(f.Path, t), nil
}

// SeparateDocuments confines attention to documents.
func (f *Folder) SeparateDocuments() error {
	const unknown = "where a document ends is not known"
	t, err := f.Tokenizer()
	if err != nil {
		return fmt.Errorf("%s: %w", unknown, err)
	}
	end, ok := t.EndOfText()
	if !ok {
		return fmt.Errorf("%s by the tokenizer in the model's folder: %w", unknown, data.ErrNoEnd)
	}
	f.Documents = &graph.Documents{End: end, Length: f.Model.MaxPositions}
	return nil
}

// Quantize holds the weights of the model's layers in 4 bits, as training with quantize:
// nf4 does. Then only adapters and parameters outside the layers have gradients.
func (f *Folder) Quantize() error {
	m := *f.Model
	if m.LoRA == nil {
		m.FreezeLinear()
	}
	f.Model = &m
	return m.Quantize()
}

// CompressCaches holds keys and values in 8 or 4 bits each while text is generated, as FlexGen does (2303.06865). It changes what
// is generated.
func (f *Folder) CompressCaches(bits int) error {
	if bits != 4 && bits != 8 {
		return misuse{fmt.Errorf("caches cannot be held in %d bits; hint: use 8 or 4, or leave it out to keep keys and values as they are", bits)}
	}
	m := *f.Model
	m.CacheBits = bits
	f.Model = &m
	return nil
}

// compress changes what the model computes as a prompt asks.
func (f *Folder) compress(p *Prompt) error {
	if p.Quantize {
		if err := f.Quantize(); err != nil {
			return err
		}
	}
	if p.CacheBits != 0 {
		return f.CompressCaches(p.CacheBits)
	}
	return nil
}

// Close closes the weights.
func (f *Folder) Close() error { return f.weights.Close() }

// Session opens the model for batches of sequences of seq tokens on one device, in the given mode. Close the session, then
// its devices. The error is a *search.Misfit if the device has too little memory.
func (f *Folder) Session(ctx context.Context, seq, sequences int, mode lower.Mode) (*session.Session, error) {
	g, err := graph.BuildDocuments(f.Model, seq, f.DType, f.Documents)
	if err != nil {
		return nil, err
	}
	d, err := machine.OpenAlone(f.Device, seq, f.Limit)
	if err != nil {
		return nil, misuse{err}
	}
	s, err := openAlone(ctx, d, g, sequences, mode)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := f.load(s); err != nil {
		s.Close()
		return nil, errors.Join(err, d.Close())
	}
	return s, nil
}

// openAlone plans inference for a device and opens it there, with the programs of prompts first. The weights are still to be
// loaded. On an error, the device stays open.
func openAlone(ctx context.Context, d *machine.Alone, g *graph.Graph, sequences int, mode lower.Mode, prompts ...*graph.Graph) (*session.Session, error) {
	programs, err := planner.Inference(ctx, d, g, sequences, mode, prompts...)
	if err != nil {
		return nil, err
	}
	var steps [][]*program.Program
	for _, p := range programs {
		if err := verify.Verify(p); err != nil {
			return nil, err
		}
		steps = append(steps, []*program.Program{p})
	}
	return session.Open(g, []device.Device{d.Device}, steps...)
}

// Footprint is the memory that a model's programs take, as planned, in bytes.
type Footprint struct {
	Device int64 `json:"device_bytes"`
	Host   int64 `json:"host_bytes"`
	// Streamed are the bytes of weights that are copied from the host to the device for each step, or generated token.
	Streamed int64 `json:"streamed_bytes"`
}

// footprint returns that of a session of the given number of programs.
func footprint(s *session.Session, programs int) Footprint {
	var list []*program.Program
	for i := range programs {
		list = append(list, s.Program(i))
	}
	return FootprintOf(list)
}

// FootprintOf returns that of programs that share their memory. What is streamed is the last one's.
func FootprintOf(list []*program.Program) (f Footprint) {
	for _, p := range list {
		f.Device, f.Host = max(f.Device, p.Height[device.DeviceTier]), max(f.Host, p.Height[device.HostTier])
		f.Streamed = streamedBytes(p)
	}
	return f
}

// streamedBytes returns the bytes of weights that a program copies to the device.
func streamedBytes(p *program.Program) (sum int64) {
	for i := range p.Instrs {
		in := &p.Instrs[i]
		if in.Stream != device.HostToDev {
			continue
		}
		if to := in.Args[graph.CopyDst]; p.Buffers[to.Buf].Class == program.ClassWeights || p.Buffers[to.Buf].Class == program.ClassFrozen {
			sum += p.Operand(to).Bytes()
		}
	}
	return sum
}

// load fills a session's parameters.
func (f *Folder) load(s *session.Session) error {
	if err := CheckTied(f.weights.Base, f.Model); err != nil {
		return WeightsError(f.base, err)
	}
	return WeightsError(f.Path, s.Load(f.weights.Read))
}

// WeightsError adds to an error which folder's weights it is about.
func WeightsError(dir string, err error) error {
	if err != nil {
		err = fmt.Errorf("weights of %s: %w", dir, err)
	}
	return err
}
