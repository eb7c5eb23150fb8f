package train

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fields decodes a protocol buffer into the raw values of its fields, by number: the
// reader of the format, without the writer's code.
func fields(t *testing.T, b []byte) map[int][][]byte {
	t.Helper()
	list := map[int][][]byte{}
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		b = b[n:]
		var size int
		switch key & 7 {
		case 0:
			_, size = binary.Uvarint(b)
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			length, n := binary.Uvarint(b)
			b, size = b[n:], int(length)
		default:
			t.Fatalf("wire type %d", key&7)
		}
		list[int(key>>3)] = append(list[int(key>>3)], b[:size])
		b = b[size:]
	}
	return list
}

// point is a decoded value.
type point struct {
	step  uint64
	tag   string
	value float32
}

// recordsOf reads a file of records as TensorBoard does: checksums, then messages. start
// is the step of the session's start.
func recordsOf(t *testing.T, path string) (points []point, start uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	sum := func(b []byte) uint32 {
		return bits.RotateLeft32(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)), 17) + 0xa282ead8
	}
	for first := true; len(b) > 0; first = false {
		n := binary.LittleEndian.Uint64(b)
		data := b[12 : 12+n]
		if binary.LittleEndian.Uint32(b[8:]) != sum(b[:8]) || binary.LittleEndian.Uint32(b[12+n:]) != sum(data) {
			t.Fatal("a checksum is wrong")
		}
		b = b[16+n:]
		event := fields(t, data)
		if version := event[3]; first != (version != nil) || first && string(version[0]) != "brain.Event:2" {
			t.Fatalf("versions %q", version)
		}
		if seconds := math.Float64frombits(binary.LittleEndian.Uint64(event[1][0])); !(seconds > 1.7e9 && seconds < 1e11) {
			t.Errorf("wall time %v", seconds)
		}
		step, _ := binary.Uvarint(event[2][0])
		if event[7] != nil {
			start = step
		}
		for _, summary := range event[5] {
			for _, v := range fields(t, summary)[1] {
				value := fields(t, v)
				points = append(points, point{step, string(value[1][0]), math.Float32frombits(binary.LittleEndian.Uint32(value[2][0]))})
			}
		}
	}
	return points, start
}

// TestTensorBoard: a run's events are its metrics, and a process that resumes records from
// which step.
func TestTensorBoard(t *testing.T) {
	dir := t.TempDir()
	log, _, err := openMetrics(dir, 0)
	check(t, err)
	check(t, log.add(Metrics{Step: 1, Loss: 3.5, LearningRate: 1e-3, GradNorm: 2, Rate: 1e4, MFU: 0.5, StepSeconds: 0.25}))
	check(t, log.validated(1, 3.25, 0, nil, nil, nil))
	check(t, log.add(Metrics{Step: 300, Loss: 2.5, SkippedSteps: 2}))
	check(t, log.close())
	list, err := filepath.Glob(dir + "/events.out.tfevents.*")
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	points, start := recordsOf(t, list[0])
	want := []point{{1, "train/loss", 3.5}, {1, "train/learning_rate", 1e-3}, {1, "train/grad_norm", 2}, {1, "perf/tokens_per_second", 1e4}, {1, "perf/mfu", 0.5},
		{1, "perf/step_seconds", 0.25}, {1, "val/loss", 3.25}, {300, "train/loss", 2.5}}
	if last := points[len(points)-1]; last != (point{300, "train/skipped_steps", 2}) {
		t.Errorf("the last point is %v", last)
	}
	if got := points[:len(want)]; !slices.Equal(got, want) || start != 1 {
		t.Errorf("got %v from step %d, want %v", got, start, want)
	}
	check(t, os.Remove(list[0]))
	log, _, err = openMetrics(dir, 200)
	check(t, err)
	check(t, log.close())
	list, err = filepath.Glob(dir + "/events.out.tfevents.*")
	check(t, err)
	if _, start := recordsOf(t, list[0]); start != 201 {
		t.Errorf("goes on at step %d, want 201", start)
	}
}
