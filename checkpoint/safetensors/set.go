package safetensors

// A model in several files.
//
// Example: model-00001-of-00002.safetensors, model-00002-of-00002.safetensors and model.safetensors.index.json with
//
//	{"metadata": {"total_size": 96}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
//
// Known weakness: a single tensor is never split, so a shard can be larger than the limit by one tensor.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Set holds the tensors of a model: those of one file, or of all files named by an index. Its methods may be called
// concurrently.
type Set struct {
	files   []*File
	tensors []Info
	where   map[string]*File
}

// OpenFolder opens the weights of a Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json.
func OpenFolder(dir string) (*Set, error) {
	set, err := OpenIn(dir, "model")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return set, nil
}

// OpenIn is OpenSet for the files of a folder on disk.
func OpenIn(dir, base string) (*Set, error) {
	return OpenSet(func(name string) (Source, error) { return OpenSource(filepath.Join(dir, name)) }, base)
}

// OpenSet opens base.safetensors or, if that doesn't exist, the files named by base.safetensors.index.json. open opens a
// file by name, in one folder.
func OpenSet(open func(name string) (Source, error), base string) (*Set, error) {
	single := base + ".safetensors"
	set := &Set{where: map[string]*File{}}
	file, err := openNamed(open, single)
	if err == nil {
		set.files = []*File{file}
		set.tensors = file.Tensors()
		for _, t := range set.tensors {
			set.where[t.Name] = file
		}
		return set, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	index, err := readIndex(open, single+".index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no %s and no %[1]s.index.json: %w\nhint: older folders with pytorch_model.bin must be "+
			"saved again by transformers (save_pretrained writes safetensors)", single, fs.ErrNotExist)
	}
	if err == nil {
		err = set.openShards(open, index)
	}
	if err != nil {
		set.Close()
		return nil, fmt.Errorf("%s.index.json: %w", single, err)
	}
	return set, nil
}

// openShards opens each file once; the index decides which tensors are visible.
func (s *Set) openShards(open func(name string) (Source, error), index map[string]string) error {
	perFile := map[string]int{}
	for _, file := range index {
		perFile[file]++
	}
	names := make([]string, 0, len(perFile))
	for file := range perFile {
		if !filepath.IsLocal(file) || strings.ContainsAny(file, `/\`) {
			return fmt.Errorf("%w: %.80q is not the name of a file in the same folder", ErrCorrupt, file)
		}
		names = append(names, file)
	}
	slices.Sort(names)
	for _, name := range names {
		file, err := openNamed(open, name)
		if err != nil {
			return err
		}
		s.files = append(s.files, file)
		for _, t := range file.Tensors() {
			if index[t.Name] == name {
				s.where[t.Name] = file
				s.tensors = append(s.tensors, t)
				perFile[name]--
			}
		}
		if perFile[name] > 0 {
			return fmt.Errorf("%w: %d tensors of the index are not in %s", ErrCorrupt, perFile[name], name)
		}
	}
	return nil
}

// Close closes all files.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Tensors lists all tensors, file by file. The caller must not change the list.
func (s *Set) Tensors() []Info { return s.tensors }

// Lookup returns the tensor of that name.
func (s *Set) Lookup(name string) (Info, bool) {
	file, ok := s.where[name]
	if !ok {
		return Info{}, false
	}
	return file.Lookup(name)
}

// Place is where consecutive elements of a tensor are: in a file, from an offset on.
type Place struct {
	Path     string
	Offset   int64
	DType    DType
	Elements int
}

// Place returns where elements of a tensor are, from index first on; not ok: the file is not one on a disk.
func (s *Set) Place(name string, first, n int) (p Place, ok bool) {
	file, ok := s.where[name]
	if !ok {
		return p, false
	}
	disk, ok := file.source.(diskFile)
	e := file.entries[name]
	if !ok || first < 0 || n < 0 || first > e.Elements()-n {
		return p, false
	}
	return Place{disk.Name(), file.base + e.begin + int64(first)*int64(e.DType.Size()), e.DType, n}, true
}

// ReadBytes is File.ReadBytes on the file that holds the tensor.
func (s *Set) ReadBytes(name string, offset int64, dst []byte) error {
	file, err := s.find(name)
	if err != nil {
		return err
	}
	return file.ReadBytes(name, offset, dst)
}

// ReadFloat32 is File.ReadFloat32 on the file that holds the tensor.
func (s *Set) ReadFloat32(name string, first int, dst []float32) error {
	file, err := s.find(name)
	if err != nil {
		return err
	}
	return file.ReadFloat32(name, first, dst)
}

// CopyBytes writes a tensor's bytes as they are.
func (s *Set) CopyBytes(w io.Writer, info Info) error {
	piece := make([]byte, min(1<<18, info.Bytes()))
	for at := int64(0); at < info.Bytes(); at += int64(len(piece)) {
		part := piece[:min(int64(len(piece)), info.Bytes()-at)]
		if err := s.ReadBytes(info.Name, at, part); err != nil {
			return err
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) find(name string) (*File, error) {
	if file, ok := s.where[name]; ok {
		return file, nil
	}
	return nil, fmt.Errorf("safetensors: %w: %.80q", ErrNoTensor, name)
}

// WriteSet writes base.safetensors or, if there are more than limit bytes of data (0: no limit), shards of at most limit
// bytes and an index. create creates a file; an error on closing it is returned.
func WriteSet(create func(name string) (io.WriteCloser, error), base string, limit int64, metadata map[string]string,
	tensors []Tensor) error {
	shards, total := split(tensors, limit)
	if len(shards) == 1 {
		return writeNamed(create, base+".safetensors", func(w io.Writer) error { return Write(w, metadata, tensors) })
	}
	index := map[string]string{}
	for i, shard := range shards {
		name := fmt.Sprintf("%s-%05d-of-%05d.safetensors", base, i+1, len(shards))
		for _, t := range shard {
			if _, twice := index[t.Name]; twice {
				return fmt.Errorf("safetensors: duplicate tensor %.80q", t.Name)
			}
			index[t.Name] = name
		}
		err := writeNamed(create, name, func(w io.Writer) error { return Write(w, metadata, shard) })
		if err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(map[string]any{
		"metadata": map[string]int64{"total_size": total}, "weight_map": index,
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeNamed(create, base+".safetensors.index.json", func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// split divides the tensors into shards, in order.
func split(tensors []Tensor, limit int64) (shards [][]Tensor, total int64) {
	begin, size := 0, int64(0)
	for i, t := range tensors {
		if limit > 0 && i > begin && t.Bytes() > limit-size {
			shards = append(shards, tensors[begin:i])
			begin, size = i, 0
		}
		size += t.Bytes()
		total += t.Bytes()
	}
	return append(shards, tensors[begin:]), total
}

func writeNamed(create func(name string) (io.WriteCloser, error), name string, write func(io.Writer) error) error {
	w, err := create(name)
	if err != nil {
		return err
	}
	if err := write(w); err != nil {
		w.Close()
		return fmt.Errorf("%s: %w", name, err)
	}
	return w.Close()
}

func openNamed(open func(name string) (Source, error), name string) (*File, error) {
	source, err := open(name)
	if err != nil {
		return nil, err
	}
	file, err := NewFile(source)
	if err != nil {
		source.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}

// readIndex returns the weight map.
func readIndex(open func(name string) (Source, error), name string) (map[string]string, error) {
	source, err := open(name)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	if source.Size() > maxHeader {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrCorrupt, source.Size(), maxHeader)
	}
	text := make([]byte, source.Size())
	if err := readFull(source, text, 0); err != nil {
		return nil, err
	}
	index, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return index, nil
}

func parseIndex(text []byte) (index map[string]string, err error) {
	dec := newDecoder(text)
	err = object(dec, func(key string) error {
		if key == "weight_map" {
			index, err = parseStrings(dec)
			return err
		}
		var skipped json.RawMessage // metadata: total_size is often wrong in published folders, nothing depends on it
		return dec.Decode(&skipped)
	})
	if err == nil {
		err = onlySpace(dec)
	}
	if err == nil && index == nil {
		err = fmt.Errorf("there is no weight_map")
	}
	return index, err
}
