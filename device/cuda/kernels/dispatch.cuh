// Slots of a mixture's tokens, SLOTS a token, sorted by expert: what dispatch.cu leaves in scratch
// memory and products read. Each expert's slots are in ascending order.
//
//   tiles    (for results with rows of slots) one expert's next slots, n[3] at most, which a
//            block multiplies; there are at most n[4], and those behind the last are empty
//   starts   of each expert's slots in order, and the end
//   counts   of each expert's slots in each sequence of a.seq tokens
//   order    slots; -1 for a row of zeros, with which those of each sequence are padded to multiples of
//            n[2]
//
// n[0]: experts. n[1]: sequences.
struct Tile { int expert, first, rows; };

static __device__ inline Tile* tilesOf(const Args& a) { return (Tile*)a.scratch; }
static __device__ inline int* startsOf(const Args& a) { return (int*)(tilesOf(a) + a.n[4]); }
static __device__ inline int* countsOf(const Args& a) { return startsOf(a) + a.n[0] + 1; }
static __device__ inline int* orderOf(const Args& a) { return countsOf(a) + a.n[0] * a.n[1]; }

// slotAt returns where a slot's columns begin: width of its own, or the token's if all of its slots
// have the same.
template <class T> static __device__ inline T* slotAt(const Mat& t, int slot, int width) { return at<T>(t, slot / SLOTS, t.cols == width ? 0 : slot % SLOTS * width); }
