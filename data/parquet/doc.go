// Package parquet reads Apache Parquet files row by row, as JSON.
//
//	footer --Open--> schema and row groups --Next--> a row --AppendObject--> {"text": "..."}
//
// # Approach
//
// A row becomes the object that a line of JSONL would be, so what a document is has to be known in one place only
// (package data), and that place knows nothing about Parquet. Columns are read on demand: the pages of a column are
// neither read nor decompressed in a row group in which no row asks for it.
//
// A column of a row group is a sequence of pages, each compressed on its own. A page holds entries: repetition level,
// definition level, and a value if the definition level is the highest. Levels say where lists begin, continue or are
// empty, and what is null (Dremel's encoding). A page is decoded entry by entry, so that it takes no more memory than
// its bytes. For a list of structures, whose members are columns of their own, the levels of all of them have to agree.
//
// Example: the column messages.list.element.role of the rows [{role: "a"}, {role: "b"}], null and [] has the entries
//
//	repetition  definition  value
//	         0           4  a       a row begins
//	         1           4  b       its list continues
//	         0           0          null
//	         0           1          the list is there, but empty
//
// # What is read
//
// Compression: none, Snappy, gzip, Zstandard, LZ4_RAW. Data pages of versions 1 and 2. All encodings of the
// specification except BIT_PACKED levels, which are deprecated. Strings, integers, floats, booleans, and structures and
// lists of these, also in the forms that older writers gave to lists. What has no single form in JSON (dates, decimals,
// maps) is refused where it is asked for, and so are encrypted files. NaN and infinities are null, as JSON has no such
// numbers.
//
// # Bounds
//
// Nothing is trusted: sizes are compared with the file and with a bound on memory (Open) before anything is allocated,
// and counts are not believed. Columns together hold one page and one dictionary each. What a row may contain is bounded
// too, since a dictionary can make a page of megabytes stand for terabytes. Checksums of pages are verified where
// present.
//
// # Why not a library
//
// github.com/parquet-go/parquet-go (v0.32.0, 60,000 lines) adds nine modules and grows the program from 15.8 MB to 27.7
// MB; Arrow's adds thirteen. This package, with github.com/klauspost/compress, grows it to 16.5 MB. Of 16,170 files of 5
// to 8 KB with one or two bytes changed, 186 made parquet-go panic, which could be contained. One made it allocate 4 GB
// and work for 88 s, and a damaged LZ4 page killed the program for lack of memory, which can be neither contained nor,
// since page headers may be anywhere in a file, checked beforehand.
//
// Specification: https://parquet.apache.org/docs/file-format/ and parquet.thrift of github.com/apache/parquet-format.
//
// # Known weakness
//
// One goroutine decodes. A column that only some rows of a row group ask for is decoded for all rows before them.
package parquet
