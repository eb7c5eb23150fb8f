package paths

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExpand: variables and the home are expanded, anything else is left as it is.
func TestExpand(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	t.Setenv("SCRATCH", "/scratch/7")
	t.Setenv("EMPTY", "")
	for path, want := range map[string]string{
		"": "", "gpt2": "gpt2", "bpe-8192": "bpe-8192", "auto": "auto", "a/~/b": "a/~/b", "~you/x": "~you/x", "x~": "x~", "cost $": "cost $",
		"~": "/home/me", "~/runs": "/home/me/runs", "$SCRATCH/runs": "/scratch/7/runs", "a${SCRATCH}b$EMPTY": "a/scratch/7b",
	} {
		if got, err := Expand(path); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := Expand("a/$ABSENT/${ALSO}"); err == nil || !strings.Contains(err.Error(), "ABSENT is not set; hint:") {
		t.Errorf("a variable that is not set: %v", err)
	}
	t.Setenv("HOME", "")
	if got, err := Expand("~/x"); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("without a home: %q, %v", got, err)
	}
}

// TestHub: a model of the hub is the folder of the revision that was downloaded last, wherever
// the variables say that downloads are; all other names are unchanged.
func TestHub(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	const repo = "hub/models--org--Model-0.5B"
	write(repo+"/snapshots/c0ffee/config.json", "{}")
	write(repo+"/snapshots/decaf/config.json", "{}")
	write(repo+"/refs/main", "c0ffee\n")
	write("hub/models--org--gone/refs/main", "c0ffee")             // its files were removed
	write("hub/models--org--outside/refs/main", "../../../org/up") // never beyond the snapshots
	write("org/up/config.json", "{}")
	write("org/folder/config.json", "{}")
	write("hub/models--org--folder/refs/main", "c0ffee")
	write("hub/models--org--folder/snapshots/c0ffee/config.json", "{}")
	t.Chdir(dir)
	found := filepath.Join(dir, repo, "snapshots", "c0ffee")
	for _, vars := range []map[string]string{
		{"HF_HUB_CACHE": dir + "/hub"}, {"HUGGINGFACE_HUB_CACHE": dir + "/hub"}, {"HF_HOME": dir}, {"HF_HOME": "/absent", "HF_HUB_CACHE": dir + "/hub"},
	} {
		for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"} {
			t.Setenv(name, vars[name])
		}
		for name, want := range map[string]string{
			"org/Model-0.5B": found, "": "", "gpt2": "gpt2", "org/absent": "org/absent", "org/gone": "org/gone", "org/outside": "org/outside",
			"org/folder": "org/folder", "org/Model-0.5B/": "org/Model-0.5B/", "/org/Model-0.5B": "/org/Model-0.5B", "../Model-0.5B": "../Model-0.5B", "a/b/c": "a/b/c",
		} {
			if got := Hub(name); got != want {
				t.Errorf("%v: %q is %q, want %q", vars, name, got, want)
			}
		}
		for folder, want := range map[string]string{ // another revision, and other folders, have no name that holds elsewhere
			found: "org/Model-0.5B", found + "/": "org/Model-0.5B", filepath.Join(dir, repo, "snapshots", "decaf"): "", dir + "/org/up": "", "": "", "/": "",
		} {
			if got, ok := HubName(folder); ok != (want != "") || ok && got != want {
				t.Errorf("%v: %q is of %q, want %q", vars, folder, got, want)
			}
		}
	}
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_HOME", "")
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CACHE_HOME", "")
	if err := errors.Join(os.MkdirAll(".cache/huggingface", 0o777), os.Rename("hub", ".cache/huggingface/hub")); err != nil {
		t.Fatal(err)
	}
	if got := Hub("org/Model-0.5B"); !strings.HasPrefix(got, filepath.Join(dir, ".cache", "huggingface", "hub")) {
		t.Errorf("without variables: %q", got)
	}
}
