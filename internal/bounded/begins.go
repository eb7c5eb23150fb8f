package bounded

import "strings"

// What is there instead of a file that was meant.

// beginnings are how files begin that are often found in the place of others. text: prose may begin so.
var beginnings = []struct {
	start, is, hint string
	text            bool
}{
	{"version https://git-lfs.github.com/", "a pointer of Git LFS, which stands for the file", "git lfs pull, where the file was cloned", false},
	{"<!DOCTYPE html", "a web page", "download the file itself", true},
	{"<!doctype html", "a web page", "download the file itself", true},
	{"<html", "a web page", "download the file itself", true},
	{"PK\x03\x04", "a ZIP file, as documents of offices and pickles of PyTorch are", "take out what is in it, or convert it", false},
	{"%PDF-", "a PDF", "convert it", false},
	{"PAR1", "a Parquet file", "let its name end in .parquet", false},
	{"\x93NUMPY", "an array of NumPy", "convert it", false},
	{"\x89HDF\r\n", "an HDF5 file", "convert it", false},
	{"SQLite format 3\x00", "a database of SQLite", "convert it", false},
	{"\x7fELF", "a program", "name another file", false},
	{"\x89PNG\r\n", "an image", "name another file", false},
	{"\xff\xd8\xff", "an image", "name another file", false},
	{"GGUF", "a GGUF file", "use the folder that it was made from", true},
	{"ARROW1", "an Arrow file", "convert it to Parquet", false},
	{"7z\xbc\xaf\x27\x1c", "a 7-Zip file", "take out what is in it", false},
	{"Obj\x01", "an Avro file", "convert it to Parquet", false},
	{"\x80\x02}", "a pickle", "convert it", false},
	{"\x80\x04\x95", "a pickle", "convert it", false},
	{"\xd0\xcf\x11\xe0", "a document of an office", "convert it", false},
}

// LongestBeginning is how many bytes tell what a file is.
const LongestBeginning = 40

// Begins returns what a file is that begins so, and what to do about it; "": nothing that is known. Prose may begin like
// some of it, which asText passes over.
func Begins(start []byte, asText bool) (is, hint string) {
	for _, b := range beginnings {
		if strings.HasPrefix(string(start), b.start) && !(asText && b.text) {
			return b.is, b.hint
		}
	}
	return "", ""
}
