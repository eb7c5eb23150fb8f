package hardware

import (
	"slices"
	"strings"
)

// The GPUs that are known: NVIDIA's of the last four generations that people own or rent, on which Athanor can run.
//
// Peaks and bandwidths are the maker's: dense, accumulating in fp32 (tensor cores for bf16, plain units for fp32). Each row
// names its source. Fractions of the peak are those that good kernels reach: measured ones on an H200, published ones for
// A100 and H100, and for the others those of similar cards; lower where power is capped well below what the cores could
// use (A10, A40, A6000, L4, L40S, RTX 6000 Ada, laptops).

// gpu is a row of the table. Rates in TFLOP/s and GB/s, memory in GiB.
type gpu struct {
	name      string
	memory    int64
	bf16, f32 float64
	bandwidth float64
	matmul    float64
	attention float64
	bus       string
	host      string
	peers     float64 // to the other GPUs, one way: NVLink, or the bus through the host
	source    string
}

// withoutFP8 are beginnings of the names of Ampere's cards. Tensor cores of all later ones multiply in FP8 at twice the rate of bf16 if
// sums are in fp32, by the same sources.
var withoutFP8 = []string{"rtx30", "a", "jetson-orin", "elixir"}

// peak returns the maker's rates.
func (g gpu) peak() Rate {
	r := Rate{F32: g.f32 * 1e12, BF16: g.bf16 * 1e12, FP8: 2 * g.bf16 * 1e12}
	if slices.ContainsFunc(withoutFP8, func(begin string) bool { return strings.HasPrefix(g.name, begin) }) {
		r.FP8 = 0
	}
	return r
}

// Where the numbers are from.
const (
	ga102   = "NVIDIA Ampere GA102 GPU Architecture white paper"
	ada     = "NVIDIA Ada GPU Architecture white paper"
	gb202   = "NVIDIA RTX Blackwell GPU Architecture white paper"
	a100    = "NVIDIA A100 Tensor Core GPU Architecture white paper"
	hopper  = "NVIDIA H100 Tensor Core GPU Architecture white paper"
	dgx     = "NVIDIA Blackwell Architecture Technical Brief, table 3"
	sheet   = "the card's data sheet"
	clocked = "cores and boost clock of NVIDIA's comparison of cards: 2 FLOP a core and clock; tensor cores twice that on GeForce, four times on others"
	elixirs = "Elixir, arXiv 2212.05339"
	board   = "the board's data sheet; bf16 is an eighth of its FP4 peak with sparsity, or a fourth of its GPU's INT8 peak with sparsity"
)

var gpus = []gpu{
	// GeForce
	{"rtx3050", 8, 18.2, 9.1, 224, 0.85, 0.6, "pcie3", "desktop", 6, clocked}, // PCIe 4 with half the lanes
	{"rtx3060", 12, 25.5, 12.7, 360, 0.85, 0.6, "pcie4", "desktop", 10, ga102},
	{"rtx3060ti", 8, 32.4, 16.2, 448, 0.85, 0.6, "pcie4", "desktop", 10, ga102},
	{"rtx3070", 8, 40.6, 20.3, 448, 0.85, 0.6, "pcie4", "desktop", 10, ga102},
	{"rtx3070ti", 8, 43.5, 21.7, 608, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx3080", 10, 59.5, 29.8, 760, 0.85, 0.6, "pcie4", "desktop", 10, ga102},
	{"rtx3080-12", 12, 61.3, 30.6, 912, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx3080ti", 12, 68.2, 34.1, 912, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx3090", 24, 71, 35.6, 936, 0.85, 0.6, "pcie4", "desktop", 10, ga102},
	{"rtx3090ti", 24, 80, 40, 1008, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx4060", 8, 30.2, 15.1, 272, 0.85, 0.65, "pcie3", "desktop", 6, clocked}, // PCIe 4 with half the lanes, as the next two
	{"rtx4060ti", 16, 44.1, 22.1, 288, 0.85, 0.65, "pcie3", "desktop", 10, ada},
	{"rtx4060ti-8", 8, 44.1, 22.1, 288, 0.85, 0.65, "pcie3", "desktop", 6, ada},
	{"rtx4070", 12, 58.3, 29.1, 504, 0.85, 0.65, "pcie4", "desktop", 10, ada},
	{"rtx4070super", 12, 71, 35.5, 504, 0.85, 0.65, "pcie4", "desktop", 10, clocked},
	{"rtx4070ti", 12, 80.2, 40.1, 504, 0.85, 0.65, "pcie4", "desktop", 10, ada},
	{"rtx4070tisuper", 16, 88.2, 44.1, 672, 0.85, 0.65, "pcie4", "desktop", 10, clocked},
	{"rtx4080", 16, 97.5, 48.7, 717, 0.85, 0.65, "pcie4", "desktop", 10, ada},
	{"rtx4080super", 16, 104.4, 52.2, 736, 0.85, 0.65, "pcie4", "desktop", 10, clocked},
	{"rtx4090", 24, 165.2, 82.6, 1008, 0.85, 0.65, "pcie4", "desktop", 10, ada},
	{"rtx4090d", 24, 147, 73.5, 1008, 0.85, 0.65, "pcie4", "desktop", 10, clocked},
	{"rtx5060", 8, 38.4, 19.2, 448, 0.85, 0.6, "pcie4", "desktop", 10, clocked}, // PCIe 5 with half the lanes, as the next two
	{"rtx5060ti", 16, 47.4, 23.7, 448, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx5060ti-8", 8, 47.4, 23.7, 448, 0.85, 0.6, "pcie4", "desktop", 10, clocked},
	{"rtx5070", 12, 61.7, 30.9, 672, 0.85, 0.6, "pcie5", "desktop", 20, gb202},
	{"rtx5070ti", 16, 87.9, 43.9, 896, 0.85, 0.6, "pcie5", "desktop", 20, gb202},
	{"rtx5080", 16, 112.6, 56.3, 960, 0.85, 0.6, "pcie5", "desktop", 20, gb202},
	{"rtx5090", 32, 209.5, 104.8, 1792, 0.85, 0.6, "pcie5", "desktop", 20, gb202},
	// GeForce in laptops, at 140 to 150 W
	{"rtx3080-laptop", 16, 42, 21, 448, 0.7, 0.5, "pcie4", "laptop", 10, clocked},
	{"rtx4060-laptop", 8, 29, 14.5, 256, 0.7, 0.55, "pcie3", "laptop", 6, clocked},
	{"rtx4070-laptop", 8, 40, 20, 256, 0.7, 0.55, "pcie3", "laptop", 6, clocked},
	{"rtx4080-laptop", 12, 67.6, 33.8, 432, 0.7, 0.55, "pcie4", "laptop", 10, clocked},
	{"rtx4090-laptop", 16, 75.8, 37.9, 576, 0.7, 0.55, "pcie4", "laptop", 10, clocked},
	{"rtx5080-laptop", 16, 70, 35, 896, 0.7, 0.5, "pcie5", "laptop", 20, clocked},
	{"rtx5090-laptop", 24, 84.4, 42.2, 896, 0.7, 0.5, "pcie5", "laptop", 20, clocked},
	// Workstations
	{"a2000-12", 12, 31.9, 8, 288, 0.7, 0.55, "pcie4", "desktop", 10, sheet},
	{"a4000", 16, 76.7, 19.2, 448, 0.7, 0.55, "pcie4", "desktop", 10, sheet},
	{"a4500", 20, 94.6, 23.7, 640, 0.75, 0.55, "pcie4", "desktop", 10, sheet},
	{"a5000", 24, 111.1, 27.8, 768, 0.75, 0.55, "pcie4", "desktop", 10, sheet},
	{"a5500", 24, 136.4, 34.1, 768, 0.75, 0.55, "pcie4", "desktop", 10, sheet},
	{"a6000", 48, 154.8, 38.7, 768, 0.75, 0.55, "pcie4", "desktop", 10, ga102},
	{"rtx2000ada", 16, 48, 12, 224, 0.6, 0.5, "pcie3", "desktop", 6, sheet}, // PCIe 4 with half the lanes
	{"rtx4000ada", 20, 106.9, 26.7, 360, 0.65, 0.5, "pcie4", "desktop", 10, sheet},
	{"rtx4500ada", 24, 158.5, 39.6, 432, 0.65, 0.5, "pcie4", "desktop", 10, sheet},
	{"rtx5000ada", 32, 261.1, 65.3, 576, 0.65, 0.5, "pcie4", "desktop", 10, sheet},
	{"rtx6000ada", 48, 364, 91.1, 960, 0.7, 0.55, "pcie4", "desktop", 10, ada},
	{"rtxpro4000", 24, 147, 36.8, 672, 0.6, 0.5, "pcie5", "desktop", 20, sheet},
	{"rtxpro4500", 32, 211, 52.7, 896, 0.65, 0.5, "pcie5", "desktop", 20, sheet},
	{"rtxpro5000", 48, 258, 64.5, 1344, 0.7, 0.5, "pcie5", "desktop", 20, sheet},
	{"rtxpro6000", 96, 503.8, 126, 1792, 0.75, 0.55, "pcie5", "desktop", 20, gb202},
	{"rtxpro6000-maxq", 96, 440, 110, 1792, 0.6, 0.5, "pcie5", "desktop", 20, clocked},
	// Data centres
	{"a2", 16, 18, 4.5, 200, 0.7, 0.55, "pcie3", "server", 6, sheet},
	{"a10", 24, 125, 31.2, 600, 0.6, 0.5, "pcie4", "server", 10, sheet},
	{"a10g", 24, 70, 35, 600, 0.8, 0.55, "pcie4", "server", 10, sheet},
	{"a16", 16, 18, 4.5, 200, 0.7, 0.55, "pcie3", "server", 6, sheet}, // one of the card's four
	{"a30", 24, 165, 10.3, 933, 0.8, 0.55, "pcie4", "server", 10, sheet},
	{"a40", 48, 149.7, 37.4, 696, 0.75, 0.55, "pcie4", "server", 10, ga102},
	{"a100-40", 40, 312, 19.5, 1555, 0.8, 0.55, "pcie4", "server", 235, a100},
	{"a100-80", 80, 312, 19.5, 2039, 0.8, 0.55, "pcie4", "server", 235, a100},
	{"a100-80-pcie", 80, 312, 19.5, 1935, 0.65, 0.5, "pcie4", "server", 20, sheet},
	{"a800-80", 80, 312, 19.5, 2039, 0.8, 0.55, "pcie4", "server", 160, a100},
	{"l4", 24, 121, 30.3, 300, 0.6, 0.5, "pcie4", "server", 10, ada},
	{"l20", 48, 119.5, 59.8, 864, 0.75, 0.55, "pcie4", "server", 10, sheet},
	{"l40", 48, 181, 90.5, 864, 0.7, 0.55, "pcie4", "server", 10, sheet},
	{"l40s", 48, 362, 91.6, 864, 0.65, 0.5, "pcie4", "server", 10, sheet},
	{"h20", 96, 148, 44, 4000, 0.85, 0.6, "pcie5", "server", 370, sheet},
	{"h100", 80, 989.4, 67, 3350, 0.7, 0.4, "pcie5", "server", 370, hopper},
	{"h100-pcie", 80, 756, 51, 2000, 0.6, 0.4, "pcie5", "server", 40, hopper},
	{"h100-nvl", 94, 835, 60, 3938, 0.65, 0.4, "pcie5", "server", 40, sheet},
	{"h800", 80, 989.4, 67, 3350, 0.7, 0.4, "pcie5", "server", 160, sheet},
	{"h200", 141, 989.4, 67, 4800, 0.78, 0.4, "pcie5", "server", 370, sheet},
	{"h200-nvl", 141, 835, 60, 4800, 0.7, 0.4, "pcie5", "server", 40, sheet},
	{"gh200", 96, 989.4, 67, 4000, 0.7, 0.4, "c2c", "grace", 370, sheet},
	{"gh200-144", 140, 989.4, 67, 4900, 0.7, 0.4, "c2c", "grace", 370, sheet},
	{"b200", 179, 2250, 80, 7700, 0.7, 0.35, "pcie5", "server", 740, dgx},
	{"b300", 268, 2250, 75, 8000, 0.7, 0.35, "pcie5", "server", 740, dgx},
	{"gb200", 185, 2500, 80, 8000, 0.7, 0.35, "c2c", "grace", 740, dgx},
	{"gb300", 268, 2500, 80, 8000, 0.7, 0.35, "c2c", "grace", 740, sheet},
	// Memory of one kind for GPU and host
	{"gb10", 128, 125, 31, 273, 0.5, 0.4, unified, "spark", 25, board}, // DGX Spark; its two network ports carry 200 Gbit/s together
	{"jetson-thor", 128, 258, 8.1, 273, 0.6, 0.4, unified, "thor", 10, board},
	{"jetson-orin-64", 64, 42.5, 5.3, 204.8, 0.7, 0.5, unified, "orin-64", 1.2, board},
	{"jetson-orin-32", 32, 27, 3.3, 204.8, 0.7, 0.5, unified, "orin-32", 1.2, board},
	{"jetson-orin-nx", 16, 15, 1.9, 102.4, 0.7, 0.5, unified, "orin-16", 0.12, board},
	{"jetson-orin-nano", 8, 16.7, 2.1, 102, 0.7, 0.5, unified, "orin-8", 0.12, board},
	// As the paper measured them
	{"elixir-paper-40", 40, 312, 19.5, 1555, 0.8, 0.55, "elixir", "elixir", 235, elixirs},
	{"elixir-paper-80", 80, 312, 19.5, 2039, 0.8, 0.55, "elixir", "elixir", 235, elixirs},
}

// cards lists the driver's names for the GPUs, where they are not NVIDIA's words before the name as people write it.
var cards = []struct{ card, gpu string }{
	{"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"}, {"NVIDIA RTX 5000 Ada Generation", "rtx5000ada"}, {"NVIDIA RTX 4500 Ada Generation", "rtx4500ada"},
	{"NVIDIA RTX 4000 Ada Generation", "rtx4000ada"}, {"NVIDIA RTX 2000 Ada Generation", "rtx2000ada"}, {"NVIDIA RTX A2000 12GB", "a2000-12"},
	{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"}, {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"},
	{"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000-maxq"}, {"NVIDIA RTX PRO 5000 Blackwell", "rtxpro5000"},
	{"NVIDIA RTX PRO 4500 Blackwell", "rtxpro4500"}, {"NVIDIA RTX PRO 4000 Blackwell", "rtxpro4000"},
	{"NVIDIA A100-SXM4-40GB", "a100-40"}, {"NVIDIA A100-PCIE-40GB", "a100-40"}, {"NVIDIA A100-SXM4-80GB", "a100-80"}, {"NVIDIA A100 80GB PCIe", "a100-80-pcie"},
	{"NVIDIA A800-SXM4-80GB", "a800-80"}, {"NVIDIA H100 80GB HBM3", "h100"}, {"NVIDIA H100 PCIe", "h100-pcie"}, {"NVIDIA H100 NVL", "h100-nvl"},
	{"NVIDIA H200", "h200"}, {"NVIDIA H200 NVL", "h200-nvl"}, {"NVIDIA H800", "h800"}, {"NVIDIA H20", "h20"}, {"NVIDIA GH200 480GB", "gh200"},
	{"NVIDIA GH200 144G HBM3e", "gh200-144"}, {"NVIDIA B200", "b200"}, {"NVIDIA B300 SXM6 AC", "b300"}, {"NVIDIA GB200", "gb200"}, {"NVIDIA GB300", "gb300"},
	{"NVIDIA GB10", "gb10"}, {"DGX Spark", "gb10"}, {"NVIDIA DGX Spark", "gb10"}, {"Spark", "gb10"}, {"NVIDIA Thor", "jetson-thor"}, {"Jetson AGX Thor", "jetson-thor"},
	{"Jetson AGX Orin", "jetson-orin-64"}, {"Jetson Orin Nano Super", "jetson-orin-nano"},
}
