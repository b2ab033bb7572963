package runtime

// pages is memory outside of Go's heap: a mapped file, which is page cache, or
// memory of its own.
type pages struct {
	data   []byte
	mapped bool         // from a file
	unmap  func() error // nil if there is nothing to undo
}

// Close gives the memory back. Further calls do nothing.
func (p *pages) Close() error {
	unmap := p.unmap
	p.data, p.unmap = nil, nil
	if unmap == nil {
		return nil
	}
	return unmap()
}
