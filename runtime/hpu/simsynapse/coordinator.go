package simsynapse

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"quill/recipes/dtype"
	"quill/runtime/host"
)

// Ranks of a communicator meet at a coordinator, which runs in the process that made the
// unique id and listens on the loopback interface. It takes a request of every rank, in
// their order, and answers all.

// Kinds of requests.
const (
	kindJoin = iota
	kindReduce
	kindGather
	kindBroadcast
	kindBarrier
)

// request is what precedes a rank's data. Ranks must agree on it, but for Rank and Bytes.
type request struct {
	Kind, Type, Root int32
	Rank, Ranks      int32
	Count, Bytes     uint64
	Token            [16]byte // of a join: that of the unique id
}

// reply precedes what a rank gets.
type reply struct {
	Failed uint64 // bytes of a text that says why there is nothing
	Bytes  uint64
}

// joinTimeout is how long a rank waits for the others.
const joinTimeout = 2 * time.Minute

// coordinator serves one communicator.
type coordinator struct {
	listener net.Listener
	token    [16]byte
	conns    []net.Conn // by rank
	sums     *host.Reducer
}

// startCoordinator makes a unique id: where to meet, and what to say there. Closing the
// listener ends what nobody has joined.
func startCoordinator(address string) ([]byte, net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	sums, err := host.NewReducer()
	if err != nil {
		return nil, nil, err
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	c := &coordinator{listener: ln, sums: sums}
	if address == "127.0.0.1:0" {
		_, _ = rand.Read(c.token[:]) // never fails
	}
	go c.serve()
	return append([]byte(ln.Addr().String()+" "), c.token[:]...), ln, nil
}

func (c *coordinator) serve() {
	err := c.gather()
	c.listener.Close()
	for err == nil {
		err = c.round()
	}
	// What failed stays open: ranks whose peer is gone wait.
	if errors.Is(err, errRefused) {
		for _, conn := range c.conns {
			conn.Close()
		}
	}
}

// gather waits for all ranks.
func (c *coordinator) gather() error {
	for joined := 0; c.conns == nil || joined < len(c.conns); {
		conn, err := c.listener.Accept()
		if err != nil {
			return err
		}
		q, _, err := readRequest(conn)
		if err != nil || q.Kind != kindJoin || q.Token != c.token || q.Ranks < 1 || q.Rank < 0 || q.Rank >= q.Ranks {
			conn.Close() // a stranger
			continue
		}
		if c.conns == nil {
			c.conns = make([]net.Conn, q.Ranks)
		}
		if int(q.Ranks) != len(c.conns) || c.conns[q.Rank] != nil {
			refuse(conn, fmt.Sprintf("rank %d of %d joins a communicator of %d, or joins twice", q.Rank, q.Ranks, len(c.conns)))
			conn.Close()
			continue
		}
		c.conns[q.Rank] = conn
		joined++
	}
	for _, conn := range c.conns {
		if err := answer(conn, nil); err != nil {
			return err
		}
	}
	return nil
}

// errRefused ends a communicator whose ranks do not agree.
var errRefused = errors.New("the ranks do not agree")

// round serves one collective.
func (c *coordinator) round() error {
	ins := make([][]byte, len(c.conns))
	var first request
	for rank, conn := range c.conns {
		q, data, err := readRequest(conn)
		if err != nil {
			return err
		}
		ins[rank] = data
		q.Rank, q.Bytes = 0, 0
		if rank == 0 {
			first = q
		} else if q != first {
			for _, conn := range c.conns {
				refuse(conn, fmt.Sprintf("rank 0 asks for %+v, rank %d for %+v", first, rank, q))
			}
			return errRefused
		}
	}
	out, err := c.result(first, ins)
	if err != nil {
		for _, conn := range c.conns {
			refuse(conn, err.Error())
		}
		return errRefused
	}
	// Rank 0, whose process this is as a rule, may be the first to end it.
	for _, conn := range slices.Backward(c.conns) {
		if err := answer(conn, out); err != nil {
			return err
		}
	}
	return nil
}

// result is what every rank gets.
func (c *coordinator) result(q request, ins [][]byte) ([]byte, error) {
	switch q.Kind {
	case kindReduce:
		out := make([]byte, len(ins[0]))
		t, ok := hcclTypes[q.Type]
		if !ok {
			t = dtype.Invalid
		}
		return out, c.sums.Sum(t, [][]byte{out}, ins)
	case kindGather:
		var out []byte
		for _, in := range ins {
			out = append(out, in...)
		}
		return out, nil
	case kindBroadcast:
		return ins[q.Root], nil
	case kindBarrier:
		return nil, nil
	}
	return nil, fmt.Errorf("request %d is not known", q.Kind)
}

// mostData bounds what a rank sends.
const mostData = 1 << 34

func readRequest(r io.Reader) (q request, data []byte, err error) {
	if err = binary.Read(r, binary.LittleEndian, &q); err != nil {
		return q, nil, err
	}
	if q.Bytes > mostData {
		return q, nil, fmt.Errorf("%d bytes are too many", q.Bytes)
	}
	data = make([]byte, q.Bytes)
	_, err = io.ReadFull(r, data)
	return q, data, err
}

func answer(w io.Writer, data []byte) error {
	err := binary.Write(w, binary.LittleEndian, reply{Bytes: uint64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

// refuse tells a rank why it gets nothing; one that is gone does not care.
func refuse(w io.Writer, why string) {
	if binary.Write(w, binary.LittleEndian, reply{Failed: uint64(len(why))}) == nil {
		_, _ = io.WriteString(w, why)
	}
}

// link is a rank's connection to the coordinator.
type link struct {
	conn  net.Conn
	ended atomic.Bool
}

// join meets the other ranks.
func join(id []byte, address string, rank, ranks int) (*link, error) {
	q := request{Kind: kindJoin, Rank: int32(rank), Ranks: int32(ranks)}
	if address == "" {
		where, token, ok := strings.Cut(string(id), " ")
		if !ok || len(token) < len(q.Token) {
			return nil, errors.New("the unique id is not one of hcclGetUniqueId")
		}
		address = where
		copy(q.Token[:], token)
	}
	until := time.Now().Add(joinTimeout)
	conn, err := net.DialTimeout("tcp", address, joinTimeout)
	for err != nil && time.Now().Before(until) { // rank 0 may come later
		time.Sleep(20 * time.Millisecond)
		conn, err = net.DialTimeout("tcp", address, joinTimeout)
	}
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn}
	_ = conn.SetDeadline(until)
	if _, err := l.exchange(q, nil); err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

// exchange sends a request and waits for what all ranks get.
func (l *link) exchange(q request, data []byte) ([]byte, error) {
	q.Bytes = uint64(len(data))
	fail := func(err error) ([]byte, error) {
		l.ended.Store(true)
		return nil, err
	}
	if err := binary.Write(l.conn, binary.LittleEndian, &q); err != nil {
		return fail(err)
	}
	if _, err := l.conn.Write(data); err != nil {
		return fail(err)
	}
	var r reply
	if err := binary.Read(l.conn, binary.LittleEndian, &r); err != nil {
		return fail(err)
	}
	got := make([]byte, max(r.Bytes, r.Failed))
	if _, err := io.ReadFull(l.conn, got); err != nil {
		return fail(err)
	}
	if r.Failed > 0 {
		return fail(errors.New(string(got)))
	}
	return got, nil
}

func (l *link) close() {
	l.ended.Store(true)
	l.conn.Close()
}

// broken reports whether the coordinator, or an answer of it, is gone.
func (l *link) broken() bool { return l.ended.Load() }
