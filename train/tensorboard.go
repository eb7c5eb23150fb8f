package train

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"
)

// The content of metrics.jsonl is also written for TensorBoard, which shows all runs below a
// folder: `tensorboard --logdir runs`. The format is a list of records,
//
//	length u64, crc(length) u32, data, crc(data) u32     little endian
//
// where crc is a masked CRC-32C and data a protocol buffer. Of its message Event we
// write these fields, by number:
//
//	1 wall_time    double, seconds since 1970
//	2 step         varint
//	3 file_version string, in the first record
//	5 summary      {1: {1: tag, string; 2: simple_value, float}, ...}
//	7 session_log  {1: status, varint}; START drops what other files have from step on
//
// A process writes one file. A process that resumes from a checkpoint writes another.
type eventFile struct {
	file   backlog
	record []byte // reused
}

// scalar is a point of a curve.
type scalar struct {
	tag   string
	value float64
}

// newEvents creates the file of a process that continues after a step.
func newEvents(dir string, step int) (*eventFile, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	now := time.Now()
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%d.%s.%d", now.Unix(), host, os.Getpid())), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	e := &eventFile{file: backlog{File: f}}
	const start = 1
	err = e.write(now, 0, func(b []byte) []byte { return bytesField(b, 3, []byte("brain.Event:2")) })
	if err == nil {
		err = e.write(now, step+1, func(b []byte) []byte { return bytesField(b, 7, varintField(nil, 1, start)) })
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return e, nil
}

// add writes values of one step.
func (e *eventFile) add(step int, list ...scalar) error {
	return e.write(time.Now(), step, func(b []byte) []byte {
		var summary []byte
		for _, s := range list {
			value := bytesField(nil, 1, []byte(s.tag))
			value = binary.LittleEndian.AppendUint32(append(value, 2<<3|5), math.Float32bits(float32(s.value)))
			summary = bytesField(summary, 1, value)
		}
		return bytesField(b, 5, summary)
	})
}

// write writes an Event in one call, so that a killed process leaves whole records.
func (e *eventFile) write(now time.Time, step int, fields func([]byte) []byte) error {
	const header = 12
	b := append(e.record[:0], make([]byte, header)...)
	b = binary.LittleEndian.AppendUint64(append(b, 1<<3|1), math.Float64bits(float64(now.UnixNano())/1e9))
	b = fields(varintField(b, 2, uint64(step)))
	binary.LittleEndian.PutUint64(b, uint64(len(b)-header))
	binary.LittleEndian.PutUint32(b[8:], maskedCRC(b[:8]))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b[header:]))
	e.record = b
	return e.file.add(b)
}

func (e *eventFile) close() error { return e.file.close() }

// bytesField appends a field of strings, bytes or a message.
func bytesField(b []byte, number uint64, content []byte) []byte {
	b = binary.AppendUvarint(b, number<<3|2)
	b = binary.AppendUvarint(b, uint64(len(content)))
	return append(b, content...)
}

func varintField(b []byte, number, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, number<<3), value)
}

// maskedCRC is the CRC of these records: they may contain CRCs themselves.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}
