// Slots of a row, side by side: SLOTS of them, or 0 if a row is one and has no weights.
#define PER_ROW (SLOTS ? SLOTS : 1)

// Slot is slot k of row r, of rows slots with cols columns each.
struct Slot {
  i64 rows, r;
  int cols, k;
  // at sets the slot to number i.
  __device__ void at(i64 i) { k = (unsigned)i % PER_ROW, r = (unsigned)i / PER_ROW; }
};

// slot returns those of an operand.
static __device__ inline Slot slot(const Mat& t) { return {(i64)t.rows * PER_ROW, 0, t.cols / PER_ROW, 0}; }
