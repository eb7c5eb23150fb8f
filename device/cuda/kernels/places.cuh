// Where rows are in generation, by the operand pos: see EmbedAt in graph's table.

// positionOf returns the position of a row, negative if it is idle.
static __device__ inline i64 positionOf(const Mat& pos, i64 r) { return pos.rows > 1 ? (i64)*at<int>(pos, r, 0) : *at<int>(pos, 0, 0) + r; }

// slotOf returns the number of a row's sequence among those of the cache.
static __device__ inline i64 slotOf(const Mat& pos, i64 r) { return pos.cols > 1 ? *at<int>(pos, pos.rows > 1 ? r : 0, 1) : 0; }
