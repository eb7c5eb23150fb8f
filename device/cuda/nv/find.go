package nv

import (
	"os"
	"path/filepath"
	"slices"
)

// Places holds the paths at which each library is tried, in order.
type Places struct {
	Driver, NVRTC, CublasLt, NVML, NCCL []string
	// Empty lists the folders in ATHANOR_CUDA_LIBS that contain none of the libraries.
	Empty []string
}

// Local lists where the libraries are usually installed: the folders in ATHANOR_CUDA_LIBS, the loader's
// search path, the CUDA toolkit, and the wheels that pip installs alongside PyTorch, in active
// environments, in those on PATH and in the system's usual places.
func Local() Places { return places(os.Getenv, globNewest) }

// LocalDriver lists the places of the driver alone. No wheel has it, so that no Python environment is looked through,
// which takes longer than all the rest.
func LocalDriver() Places {
	own := filepath.SplitList(os.Getenv("ATHANOR_CUDA_LIBS"))
	return Places{Driver: driverPlaces(own, toolkits(os.Getenv, globNewest), globNewest)}
}

// globNewest lists what matches a pattern, newer versions first. A bad pattern matches nothing.
func globNewest(pattern string) []string {
	list, _ := filepath.Glob(pattern)
	slices.Sort(list)
	slices.Reverse(list)
	return list
}

func places(env func(string) string, glob func(string) []string) Places {
	own := filepath.SplitList(env("ATHANOR_CUDA_LIBS"))
	toolkit, site := toolkits(env, glob), wheels(env, glob)
	inWheels := func(wheel string, names ...string) []string {
		dirs := slices.Clone(toolkit)
		for _, s := range site {
			dirs = append(dirs, filepath.Join(s, "cu13", "lib"), filepath.Join(s, wheel, "lib"))
		}
		return libraries(own, dirs, glob, names...)
	}
	p := Places{
		Driver:   driverPlaces(own, toolkit, glob),
		NVRTC:    inWheels("cuda_nvrtc", "libnvrtc.so.13", "libnvrtc.so.12"),
		CublasLt: inWheels("cublas", "libcublasLt.so.13", "libcublasLt.so.12"),
		NVML:     libraries(own, toolkit, glob, "libnvidia-ml.so.1"),
		NCCL:     inWheels("nccl", "libnccl.so.2"),
	}
	for _, dir := range own {
		if !slices.ContainsFunc(slices.Concat(p.Driver, p.NVRTC, p.CublasLt, p.NVML, p.NCCL), func(path string) bool { return filepath.Dir(path) == filepath.Clean(dir) }) {
			p.Empty = append(p.Empty, dir)
		}
	}
	return p
}

// driverPlaces lists where the driver is tried.
func driverPlaces(own, toolkit []string, glob func(string) []string) []string {
	return libraries(own, toolkit, glob, "libcuda.so.1")
}

// libraries lists where a library with one of the names is tried: the user's own folders, as the loader finds it, and
// then the other folders.
func libraries(own, dirs []string, glob func(string) []string, names ...string) (list []string) {
	add := func(dirs []string) {
		for _, d := range dirs {
			for _, n := range names {
				list = append(list, glob(filepath.Join(d, n))...)
			}
		}
	}
	add(own)
	list = append(list, names...)
	add(dirs)
	return unique(list)
}

// toolkits returns the library folders of installed CUDA toolkits.
func toolkits(env func(string) string, glob func(string) []string) (list []string) {
	for _, home := range []string{env("CUDA_HOME"), env("CUDA_PATH")} {
		if home != "" {
			list = append(list, filepath.Join(home, "lib64"))
		}
	}
	if conda := env("CONDA_PREFIX"); conda != "" { // where its packages cuda-nvrtc and libcublas are
		list = append(list, filepath.Join(conda, "lib"))
	}
	list = append(list, glob("/usr/local/cuda*/lib64")...)
	return append(list, glob("/usr/local/nvidia/lib64")...) // where hosts mount the driver into containers
}

// wheels returns the nvidia folders of Python environments, in which pip installs the libraries.
func wheels(env func(string) string, glob func(string) []string) (list []string) {
	roots := []string{env("VIRTUAL_ENV"), env("CONDA_PREFIX")}
	for _, bin := range filepath.SplitList(env("PATH")) { // the folder of a Python that was not activated is often on it
		roots = append(roots, filepath.Dir(bin))
	}
	for _, root := range append(roots, filepath.Join(env("HOME"), ".local"), "/usr/local", "/usr", "/opt/*", "/root/.pyenv/versions/*", filepath.Join(env("HOME"), ".pyenv/versions/*")) {
		if root == "" || root == "." || root == ".local" {
			continue
		}
		for _, lib := range []string{"lib", "lib64"} {
			for _, dist := range []string{"site-packages", "dist-packages"} {
				list = append(list, glob(filepath.Join(root, lib, "python3*", dist, "nvidia"))...)
			}
		}
	}
	return list
}

// unique drops duplicates, which arise when several patterns match a folder.
func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
