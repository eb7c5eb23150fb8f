package paths

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
)

// Hub returns the folder in which Hugging Face's tools keep the model of a name such as
// Qwen/Qwen3-0.6B, of the revision that `hf download` fetched last. A name that is itself a file or
// folder, is not of this form, or was not downloaded is returned unchanged. Nothing is downloaded.
//
//	models--Qwen--Qwen3-0.6B/refs/main              c1899de289a04d12100db370d81485cdf75e47ca
//	models--Qwen--Qwen3-0.6B/snapshots/c1899de2.../ config.json, model.safetensors, ...
func Hub(name string) string {
	if _, err := os.Stat(name); err == nil || !IsHub(name) {
		return name
	}
	repo := filepath.Join(hubCache(), "models--"+strings.ReplaceAll(name, "/", "--"))
	commit, err := os.ReadFile(filepath.Join(repo, "refs", "main"))
	if err != nil {
		return name
	}
	snapshot := filepath.Join(repo, "snapshots", filepath.Base(strings.TrimSpace(string(commit))))
	if info, err := os.Stat(snapshot); err != nil || !info.IsDir() {
		return name
	}
	return snapshot
}

// HubName returns the name of the model that a folder of the hub's cache holds, and whether it is one: the inverse of
// Hub. The name holds on other machines, the folder does not.
func HubName(folder string) (name string, ok bool) {
	repo := filepath.Dir(filepath.Dir(filepath.Clean(folder)))
	coded, ok := strings.CutPrefix(filepath.Base(repo), "models--")
	name = strings.Replace(coded, "--", "/", 1)
	if !ok || !IsHub(name) {
		return "", false
	}
	there, err := os.Stat(Hub(name)) // by the same cache and revision
	here, second := os.Stat(folder)
	return name, err == nil && second == nil && os.SameFile(there, here)
}

// IsHub reports whether a name could be that of a model on the hub: two words of the hub's characters.
func IsHub(name string) bool {
	org, model, two := strings.Cut(name, "/")
	word := func(s string) bool {
		return s != "" && strings.Trim(s, ".") == s && !strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
		})
	}
	return two && word(org) && word(model)
}

// hubCache returns the folder of downloaded models, by the variables that Hugging Face's tools obey.
func hubCache() string {
	if dir := cmp.Or(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE")); dir != "" {
		return dir
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return filepath.Join(dir, "hub")
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "huggingface", "hub")
}
