// Package ptx executes what NVIDIA's compiler makes of a kernel, on the CPU, for
// tests where there is no GPU.
//
// NVRTC compiles a unit to PTX, the assembly that all cards have in common. Parse
// reads it, and Run goes through a launch block by block and warp by warp, 32
// lanes at a time, as NVIDIA's PTX ISA says that instructions work. So what is
// tested is what the compiler wrote: macros as a card sees them, inline assembly with
// its operands, addresses in shared memory, the layout of the arguments, code for
// tensor cores, none of which the kernels' text shows when another compiler
// translates it for the CPU (package fake).
//
// It is strict where a card is lenient. Accesses beyond an allocation, of shared
// memory that nobody wrote, between threads that no barrier separates, of a copy
// that was not waited for, or of what a warpgroup's product has that was not; warps that come apart where they have to be together:
// each stops the launch and is told with the instruction, the block and the
// thread. Where PTX leaves results open it takes bad ones: approximations are off
// by about as much as NVIDIA says that they may be, and tensor cores round toward zero.
//
// And it counts what a launch costs: instructions, requests to shared memory in excess of
// those without bank conflicts, sectors of global memory. These are
// facts about the code on any card; times are not.
//
// What it does not show: the second half of the compiler, which turns PTX into a
// card's instructions, and the order in which a card's memory makes writes of one
// block known to another, which no kernel here relies upon.
package ptx
