package config

import (
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Source is a part of the corpus.
type Source struct {
	Files Strings `yaml:"files"` // or patterns
	Times float64 `yaml:"times"` // how often a pass over the corpus reads it; 1 unless given
}

// mostTimes is how often a pass may read a source: more is learning by heart.
const mostTimes = 1000

// Sources are the parts of a corpus. Files that are named without times are one source, the first, and usually the only one.
type Sources []Source

// Files returns a corpus of one source.
func Files(patterns ...string) Sources { return Sources{{Files: patterns, Times: 1}} }

// UnmarshalYAML reads a source, or a list of sources. A source is a name, or a mapping.
func (s *Sources) UnmarshalYAML(n *yaml.Node) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	var plain Strings
	var all Sources
	for _, e := range list {
		switch {
		case e.Kind == yaml.ScalarNode && e.ShortTag() != "!!null":
			plain = append(plain, e.Value)
		case e.Kind == yaml.MappingNode:
			one, err := ofMapping(e)
			if err != nil {
				return fmt.Errorf("%w; hint: use a file or pattern, or {files: code/*.py, times: 2}, where times is how often a pass over the corpus reads the files", err)
			}
			all = append(all, one)
		default:
			return fmt.Errorf("expected files; hint: use names or patterns such as corpus/*.txt, or a list of them")
		}
	}
	if len(plain) > 0 {
		all = slices.Insert(all, 0, Source{Files: plain, Times: 1})
	}
	*s = all
	return nil
}

// ofMapping reads a source with keys.
func ofMapping(n *yaml.Node) (Source, error) {
	one := Source{Times: 1}
	seen := map[string]bool{}
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0].Value, pair[1]
		if seen[key] {
			return one, fmt.Errorf("a source has %s twice", key)
		}
		seen[key] = true
		switch key {
		case "files":
			if err := value.Decode(&one.Files); err != nil {
				return one, fmt.Errorf("files of a source is neither a name nor a list of names")
			}
		case "times":
			if err := value.Decode(&one.Times); err != nil || !(one.Times > 0 && one.Times <= mostTimes) {
				return one, fmt.Errorf("times %s of a source is not a number above 0 and at most %d", value.Value, mostTimes)
			}
		default:
			return one, fmt.Errorf("a source has the keys files and times, but not %s", key)
		}
	}
	if len(one.Files) == 0 {
		return one, fmt.Errorf("a source names no files")
	}
	return one, nil
}

// MarshalYAML writes just the file names of a single source that is read once, else a list of sources.
func (s Sources) MarshalYAML() (any, error) {
	if len(s) == 1 && s[0].Times == 1 {
		return s[0].Files, nil
	}
	return []Source(s), nil
}

// Strings is one string or a list of them.
type Strings []string

// UnmarshalYAML takes a scalar for a list of one.
func (s *Strings) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*s = []string{n.Value}
		return nil
	}
	if err := n.Decode((*[]string)(s)); err != nil {
		return errors.New("expected a name or a list of names; hint: write a, or [a, b]")
	}
	return nil
}
