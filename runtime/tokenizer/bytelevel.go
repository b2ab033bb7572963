package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// byteRunes is the alphabet of byte-level BPE, as GPT-2 introduced it. It lets
// vocabularies hold any bytes as readable text: printable characters of
// Latin-1 stand for their own byte, and the 68 other bytes are, in order, the
// characters from U+0100 on.
var byteRunes = sync.OnceValue(func() (table [256]rune) {
	next := rune(0x100)
	for b := range rune(256) {
		table[b] = b
		if !('!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b && b <= 0xff) {
			table[b] = next
			next++
		}
	}
	return table
})

// runeBytes is byteRunes the other way round; -1 marks what stands for no
// byte.
var runeBytes = sync.OnceValue(func() []int16 {
	var table []int16
	for b, r := range byteRunes() {
		for len(table) <= int(r) {
			table = append(table, -1)
		}
		table[r] = int16(b)
	}
	return table
})

// unmapBytes returns the bytes that the characters of s stand for. If some
// character stands for none it is returned as foreign.
func unmapBytes(s string) (raw string, foreign rune, ok bool) {
	table := runeBytes()
	buf := make([]byte, 0, utf8.RuneCountInString(s))
	for _, r := range s {
		if int(r) >= len(table) || table[r] < 0 {
			return "", r, false
		}
		buf = append(buf, byte(table[r]))
	}
	return string(buf), 0, true
}
