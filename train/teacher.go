package train

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/session"
)

// Distillation. What the teacher says of the text never changes, so it is computed once, before the training step has its memory, and
// stored in the run's folder: for each window a checksum and the ids and log-probabilities of its tokens, so that a run that is stopped
// meanwhile goes on with the next window. Only windows that the run will read are computed, if it is known which.

// teacher is the file with what a teacher says.
type teacher struct {
	file    *os.File
	name    string
	width   int // ids of a window
	said    session.Teacher
	scratch []byte
}

// checkTeacher refuses a teacher with other tokens, and records whose weights it has.
func (s *Setup) checkTeacher() error {
	spec := s.Spec
	dir := spec.Distill.Teacher
	if dir == "" || s.Empty() {
		return nil
	}
	f, err := folder.Open(dir)
	if err != nil {
		return spec.Fault("distill.teacher", err.Error())
	}
	defer f.Close()
	if model.Classifies(f.Model) {
		return spec.Fault("distill.teacher", "it chooses among labels, and says nothing of tokens; hint: use a language model")
	}
	if f.Model.Vocab != s.Model.Vocab {
		return spec.Fault("distill.teacher", fmt.Sprintf("its vocabulary has %d tokens, and the model's %d; hint: use a teacher with the same tokenizer and as many tokens", f.Model.Vocab, s.Model.Vocab))
	}
	own, err := bpe.Load(folder.TokenizerFolder(dir))
	if err != nil {
		return spec.Fault("distill.teacher", err.Error())
	}
	if own.Hash() != s.Tokenizer.Hash() {
		return spec.Fault("distill.teacher", fmt.Sprintf("its tokenizer is not that of the run, so its token ids mean other text; hint: set tokenizer: %s, or use another teacher", folder.TokenizerFolder(dir)))
	}
	s.teacher, err = folder.Fingerprint(dir)
	return err
}

// size returns the bytes of a window in the file: a checksum, ids and log-probabilities.
func (f *teacher) size() int64 { return 8 + 8*int64(f.width) }

// openTeacher opens the file of a run, and computes what is missing. say receives progress messages.
func openTeacher(ctx context.Context, t *Run, say func(text string)) error {
	s, d := t.Setup, t.Setup.Spec.Distill
	if s.teacher == "" {
		return nil
	}
	of := sha256.Sum256(fmt.Append(nil, s.teacher, d.Top, d.Temperature, s.Spec.SequenceLength, windowsOf(s.Spec), s.hash(s.Spec), s.Train.Count(), s.Graph.DType))
	f := &teacher{name: filepath.Join(s.Spec.Out, fmt.Sprintf("teacher-%x.bin", of[:8])), width: s.Spec.SequenceLength * d.Top}
	f.scratch = make([]byte, f.size())
	n := s.Spec.GlobalBatch * f.width
	f.said = session.Teacher{IDs: make([]int32, n), Logs: make([]float32, n)}
	var err error
	if f.file, err = os.OpenFile(f.name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return outError(err)
	}
	t.teacher = f
	wanted, err := windowsWanted(ctx, t)
	if err != nil {
		return err
	}
	var missing []int64
	for _, i := range wanted {
		if f.read(i, 0) != nil {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return ask(ctx, t, missing, say)
}

// windowsWanted lists the windows that the run's steps read, from the first one on, in their order; all, if their number is not known.
func windowsWanted(ctx context.Context, t *Run) (list []int64, err error) {
	spec, seen := t.Setup.Spec, map[int64]bool{}
	add := func(i int64) {
		if !seen[i] {
			seen[i], list = true, append(list, i)
		}
	}
	if count := t.Setup.Train.Count(); spec.Timed() || int64(spec.MaxSteps)*int64(spec.GlobalBatch) >= t.Setup.Train.Pass() {
		for i := range count {
			add(i)
		}
		return list, nil
	}
	for range spec.MaxSteps {
		if _, _, _, err := t.draw(); err != nil || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		for _, i := range t.drawn {
			add(i)
		}
	}
	return list, t.sampler.Seek(data.Cursor{})
}

// ask has the teacher say what it has not said yet.
func ask(ctx context.Context, t *Run, missing []int64, say func(text string)) error {
	s, spec := t.Setup, t.Setup.Spec
	said, err := folder.Open(spec.Distill.Teacher)
	if err != nil {
		return err
	}
	defer said.Close()
	said.Device, said.Limit, said.DType, said.Documents = machine.ChooseDevice(spec.Device, say), max(int64(spec.Limits.Device), 0), s.Graph.DType, s.Graph.Documents
	asked, err := folder.OpenTeacher(ctx, said, spec.SequenceLength, spec.Distill.Top, spec.Distill.Temperature)
	if err != nil {
		return err
	}
	defer asked.Close()
	f, began := t.teacher, time.Now()
	ids, logs := make([]int32, asked.Sequences*f.width), make([]float32, asked.Sequences*f.width)
	for done := 0; done < len(missing); done += asked.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := missing[done:min(done+asked.Sequences, len(missing))]
		var rows [][]int32
		for _, i := range part {
			rows = append(rows, make([]int32, spec.SequenceLength+1))
			s.Train.Copy(rows[len(rows)-1], i)
		}
		if err := asked.Say(context.WithoutCancel(ctx), rows, ids, logs); err != nil {
			return err
		}
		for r, i := range part {
			if err := f.write(i, ids[r*f.width:][:f.width], logs[r*f.width:][:f.width]); err != nil {
				return outError(err)
			}
		}
	}
	say(fmt.Sprintf("teacher: of %d windows the %d most probable tokens after each are computed, in %v, and stored, %.1f MB of %s", len(missing), spec.Distill.Top, time.Since(began).Round(time.Second/10), float64(f.size())*float64(len(missing))/1e6, f.name))
	return nil
}

// write stores what is said of a window.
func (f *teacher) write(window int64, ids []int32, logs []float32) error {
	b := f.scratch[8:8]
	for k, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(logs[k]))
	}
	binary.LittleEndian.PutUint64(f.scratch, checksum(b))
	_, err := f.file.WriteAt(f.scratch, window*f.size())
	return err
}

// checksum is never that of a hole in the file.
func checksum(b []byte) uint64 { return 1<<32 | uint64(crc32.ChecksumIEEE(b)) }

// read reads what is said of a window into row number row of the batch.
func (f *teacher) read(window int64, row int) error {
	_, err := f.file.ReadAt(f.scratch, window*f.size())
	if b := f.scratch[8:]; err != nil || binary.LittleEndian.Uint64(f.scratch) != checksum(b) {
		return errors.Join(fmt.Errorf("%s has nothing, or damaged bytes, of window %d; hint: start the same command again, which computes what is missing", f.name, window), err)
	}
	for k := range f.width {
		pair := f.scratch[8+8*k:]
		f.said.IDs[row*f.width+k] = int32(binary.LittleEndian.Uint32(pair))
		f.said.Logs[row*f.width+k] = math.Float32frombits(binary.LittleEndian.Uint32(pair[4:]))
	}
	return nil
}

// hear returns what the teacher says of the windows of the batch; the zero value without a teacher. It is valid until the next call.
func (f *teacher) hear(windows []int64) (session.Teacher, error) {
	if f == nil {
		return session.Teacher{}, nil
	}
	for row, i := range windows {
		if err := f.read(i, row); err != nil {
			return session.Teacher{}, err
		}
	}
	return f.said, nil
}
