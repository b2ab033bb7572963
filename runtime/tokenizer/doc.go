// Package tokenizer turns text into token ids and token ids back into text,
// for the byte-level BPE tokenizers that Inkling checkpoints come with.
//
//	text ─▶ markers ─▶ split ─▶ merge ─▶ ids          Encode, EncodeWithSpecials
//	        <|name|>   words    bytes
//
//	ids ─▶ bytes of each token ─▶ valid UTF-8 ─▶ text  Decode, Stream
//
// Markers are the control tokens of the wire format, such as
// <|message_user|>. They come first because nothing may split or merge across
// them. EncodeWithSpecials recognises them; Encode never does, so that text
// typed by a user cannot open or close a message.
//
// Splitting cuts text into the pieces that tokens never cross: words,
// numbers, punctuation, white space. Two patterns are known, those of
// o200k_base and of GPT-2, each as a scanner that takes time linear in the
// text.
//
// Merging starts from the bytes of one piece and joins neighbours, the pair
// of lowest rank first, until no pair has a rank.
//
// [Load] finds a tokenizer in a checkpoint directory, in this order:
//
//	tokenizer.json             the format of Hugging Face tokenizers
//	tiktoken/tokenizer.model   a tiktoken rank file: base64, space, rank
//	tokenizer.model            the same
//	config.json                of an Inkling model: o200k_base, built in
//
// A file that asks for something this package does not implement is an error
// that names the key and the value. It is never read as something similar,
// because wrong ids look like a bad model rather than like a bad tokenizer.
//
// Token ids outside the vocabulary decode to U+FFFD, as do bytes that are not
// UTF-8. For Inkling's tokenizer that means every id from 200058 on, although
// the model's matrices have more rows.
package tokenizer
