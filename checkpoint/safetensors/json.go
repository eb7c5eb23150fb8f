package safetensors

// Strict JSON, read token by token: duplicate keys, fractions instead of integers and unexpected nesting are errors, and
// hostile depth causes no recursion.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

func newDecoder(text []byte) *json.Decoder {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return dec
}

// object reads one object; value must consume the value of the given key.
func object(dec *json.Decoder, value func(key string) error) error {
	if err := delim(dec, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for dec.More() {
		key, err := stringToken(dec)
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("duplicate name %.80q", key)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	return delim(dec, '}')
}

func parseStrings(dec *json.Decoder) (map[string]string, error) {
	m := map[string]string{}
	err := object(dec, func(key string) (err error) {
		m[key], err = stringToken(dec)
		return err
	})
	return m, err
}

func parseInts(dec *json.Decoder) ([]int, error) {
	if err := delim(dec, '['); err != nil {
		return nil, err
	}
	list := []int{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, fmt.Errorf("found %.20q instead of a number", fmt.Sprint(token))
		}
		n, err := strconv.Atoi(string(number))
		if err != nil || number[0] == '-' {
			return nil, fmt.Errorf("%.40s is not a size", number)
		}
		list = append(list, n)
	}
	return list, delim(dec, ']')
}

func delim(dec *json.Decoder, want json.Delim) error {
	token, err := dec.Token()
	if err == nil && token != want {
		err = fmt.Errorf("found %.20q instead of %q", fmt.Sprint(token), want.String())
	}
	return err
}

func stringToken(dec *json.Decoder) (string, error) {
	token, err := dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := token.(string)
	if !ok {
		return "", fmt.Errorf("found %.20q instead of a string", fmt.Sprint(token))
	}
	return s, nil
}

func onlySpace(dec *json.Decoder) error {
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("there is text after the end of the JSON object")
	}
	return nil
}
