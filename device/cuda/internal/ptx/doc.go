// Package ptx executes kernels compiled by NVIDIA's compiler on the CPU, for tests without a GPU.
//
// NVRTC compiles a unit to PTX, the assembly common to all cards. Parse reads it, and Run executes a launch block by
// block and warp by warp, 32 lanes at a time, following NVIDIA's PTX ISA. So tests cover the compiler's output:
// macros as a card sees them, inline assembly with its operands, addresses in shared memory, the layout of the
// arguments, code for tensor cores. Compiling the kernels' text for the CPU with another compiler (package fake)
// covers none of these.
//
// It is strict where a card is lenient. These errors stop the launch and are reported with the instruction, the block
// and the thread: accesses beyond an allocation, to uninitialised shared memory, between threads without a barrier,
// to a copy or the operands of a warpgroup's product that was not awaited, and warps that diverge where they must
// not. Where PTX does not define results exactly, it chooses bad ones: approximations have about the largest
// documented error, and tensor cores round toward zero.
//
// It also counts the costs of a launch: instructions, shared memory cycles with and without bank conflicts, sectors
// of global memory. These hold on any card; times would not.
//
// Known weakness: it does not cover the second half of the compiler, which translates PTX to a card's
// instructions, nor the memory order between blocks, except that a release must follow what the block
// stored.
package ptx
