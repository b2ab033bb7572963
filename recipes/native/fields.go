package native

// code describes the file, part by part.
func (r *Recipe) code(c *coder) {
	for _, p := range []struct {
		name string
		code func(*coder)
	}{
		{"version", func(c *coder) { c.u32(&r.Major); c.u32(&r.Minor) }},
		{"execution blobs", func(c *coder) { c.bytes64(&r.Execution) }},
		{"patching blobs", func(c *coder) { c.bytes64(&r.Patching) }},
		{"dynamic blobs", func(c *coder) { c.bytes64(&r.Dynamic) }},
		{"blobs", r.blobs},
		{"programs", func(c *coder) {
			list(c, &r.Programs, c.count32(len(r.Programs), 4), func(p *[]uint64) { list(c, p, c.count32(len(*p), 8), c.u64) })
		}},
		{"activate jobs", func(c *coder) { c.jobs(&r.Activate) }},
		{"execute jobs", func(c *coder) { c.jobs(&r.Execute) }},
		{"ARC jobs", r.arcJobs},
		{"persistent tensors", func(c *coder) { list(c, &r.Tensors, c.count32(len(r.Tensors), leastTensor), c.tensor) }},
		{"host-to-device tensors", func(c *coder) { c.u32(&r.H2D) }},
		{"permuted views", func(c *coder) { list(c, &r.PermuteViews, c.count64(len(r.PermuteViews), leastTensor), c.tensor) }},
		{"program data", func(c *coder) { c.bytes64(&r.ProgramData) }},
		{"constant sections", r.constSections},
		{"program data blobs", r.programBlobs},
		{"patch points", r.patchPoints},
		{"section groups", func(c *coder) {
			list(c, &r.Groups, c.count32(len(r.Groups), 5), c.group)
			c.group(&r.SyncObjects)
		}},
		{"section ids", r.sectionBlobs},
		{"nodes", r.nodes},
		{"sections", func(c *coder) { c.u32(&r.Sections) }},
		{"workspaces", func(c *coder) { list(c, &r.Workspaces, c.count32(len(r.Workspaces), 8), c.u64) }},
		{"debug information", r.Debug.code},
		{"synchronisation", r.sync},
		{"configuration", func(c *coder) {
			list(c, &r.Conf, c.count32(len(r.Conf), 9), func(f *Conf) { c.u8(&f.ID); c.u64(&f.Value) })
		}},
		{"nop kernel", func(c *coder) { c.u64(&r.NopOffset); c.u64(&r.NopSection); c.u8(&r.NopValid) }},
		{"cache identifiers", func(c *coder) { c.u16(&r.Discard); c.u16(&r.Degrade) }},
		{"recipe name", func(c *coder) { c.text(&r.Name) }},
		{"shape plane", r.shapePlane},
	} {
		c.part = p.name
		p.code(c)
	}
}

func (r *Recipe) blobs(c *coder) {
	list(c, &r.Blobs, c.count64(len(r.Blobs), 13), func(b *Blob) {
		c.u8(&b.Kind)
		c.u32(&b.Size)
		c.u64(&b.Offset)
	})
}

func (c *coder) jobs(v *[]Job) {
	list(c, v, c.count32(len(*v), 8), func(j *Job) { c.u32(&j.Engine); c.u32(&j.Program) })
}

func (r *Recipe) arcJobs(c *coder) {
	commands := func(s *Commands) {
		n := c.count32(len(s.Bytes), 1)
		c.u32(&s.EngineOffset)
		c.raw(&s.Bytes, n)
	}
	list(c, &r.ArcJobs, c.count32(len(r.ArcJobs), 21), func(j *ArcJob) {
		c.u8(&j.Engine)
		c.u32(&j.Filter)
		commands(&j.Static)
		commands(&j.Dynamic)
	})
}

// leastTensor is the size of a tensor without layout, views and the bytes of its name.
const leastTensor = 4 + 1 + 2 + 8 + 8 + 4 + 8 + 8 + 4 + 8*maxDims + 4 + 25 + 4 + 1 + 1 + 4 + 1 + 1 + 4 + 8

func (c *coder) tensor(t *Tensor) {
	c.text(&t.Name)
	c.u16(&t.Section)
	c.u64(&t.Offset)
	c.u64(&t.Size)
	c.u32(&t.DType)
	c.f64(&t.ZeroPoint)
	c.f64(&t.Scale)
	c.u32(&t.Rank)
	for i := range t.Sizes {
		c.u64(&t.Sizes[i])
	}
	c.u32(&t.HalfSize)
	for i := range t.Permutation {
		c.u8(&t.Permutation[i])
	}
	c.u32(&t.Batch)
	c.u8(&t.IsInput)
	c.u8(&t.IsExternal)
	c.u32(&t.Order)
	c.u8(&t.SectionType)
	c.u8(&t.TensorType)
	c.bytes32(&t.Layout)
	list(c, &t.Views, c.count64(len(t.Views), 4), c.u32)
}

func (r *Recipe) constSections(c *coder) {
	list(c, &r.ConstSections, c.count32(len(r.ConstSections), 11), func(s *ConstSection) {
		c.u64(&s.Size)
		c.u16(&s.Section)
		c.flag(&s.HasData)
		switch {
		case !s.HasData:
		case c.reading:
			c.raw(&s.Data, c.bounded(s.Size, 1))
		case uint64(len(s.Data)) != s.Size:
			c.fail("section %d has %d bytes of data, and says %d", s.Section, len(s.Data), s.Size)
		default:
			c.raw(&s.Data, len(s.Data))
		}
	})
}

func (r *Recipe) programBlobs(c *coder) {
	list(c, &r.ProgramBlobs, c.count32(len(r.ProgramBlobs), 26), func(b *ProgramBlob) {
		c.u64(&b.Size)
		c.u64(&b.BufferOffset)
		c.u64(&b.SectionOffset)
		c.u16(&b.Section)
	})
}

func (r *Recipe) patchPoints(c *coder) {
	n := uint32(len(r.PatchPoints))
	c.u32(&n)
	c.u32(&r.ActivatePatchPoints)
	list(c, &r.PatchPoints, c.bounded(uint64(n), 17), func(p *PatchPoint) {
		if c.u8(&p.Type); p.Type > SyncObject {
			c.fail("type %d of a patch point, want 0 to %d", p.Type, SyncObject)
		}
		c.u32(&p.Blob)
		c.u32(&p.Word)
		if p.Type == SyncObject {
			c.u32(&p.Tensor)
		} else {
			c.u64(&p.Address)
			c.u16(&p.Section)
		}
		c.u32(&p.Node)
	})
}

func (c *coder) group(g *Group) {
	c.u8(&g.Group)
	list(c, &g.PatchPoints, c.count32(len(g.PatchPoints), 4), c.u32)
}

func (r *Recipe) sectionBlobs(c *coder) {
	list(c, &r.SectionBlobs, c.count32(len(r.SectionBlobs), 6), func(s *SectionBlobs) {
		c.u16(&s.Section)
		list(c, &s.Blobs, c.count32(len(s.Blobs), 4), c.u32)
	})
}

func (r *Recipe) nodes(c *coder) {
	programs := len(r.Programs)
	list(c, &r.Nodes, c.count32(len(r.Nodes), 4+4*programs), func(n *NodeProgram) {
		if !c.reading && len(n.Blobs) != programs {
			c.fail("a node has numbers of blobs for %d of %d programs", len(n.Blobs), programs)
		}
		c.u32(&n.PatchPoints)
		list(c, &n.Blobs, programs, c.u32)
	})
}

func (d *Debug) code(c *coder) {
	c.u32(&d.Major)
	c.u32(&d.Minor)
	c.u16(&d.RecipeID)
	list(c, &d.Nodes, c.count32(len(d.Nodes), 18+3*5+2), func(n *DebugNode) {
		c.u32(&n.Device)
		c.u16(&n.Context)
		c.u32(&n.FullContext)
		c.u32(&n.Descriptors)
		c.u32(&n.KernelBlob)
		c.text(&n.Name)
		c.text(&n.Operation)
		c.text(&n.DataType)
		count := uint16(len(n.WorkingEngines))
		if int(count) != len(n.WorkingEngines) {
			c.fail("node %q has %d regions, more than 16 bits count", n.Name, len(n.WorkingEngines))
		}
		c.u16(&count)
		c.raw(&n.WorkingEngines, c.bounded(uint64(count), 1))
	})
	list(c, &d.Printf, c.count32(len(d.Printf), 8), c.u64)
	c.u64(&d.PrintfSection)
}

func (r *Recipe) sync(c *coder) {
	n := uint64(len(r.Sync))
	c.u64(&n)
	c.flag(&r.LegacySync)
	least := 9
	if r.LegacySync {
		least = 13
	}
	list(c, &r.Sync, c.bounded(n, least), func(s *SyncInfo) {
		c.u8(&s.Engine)
		c.u32(&s.Node)
		c.u16(&s.PipeLevel)
		c.u16(&s.Signal)
		if r.LegacySync {
			c.u16(&s.Object)
			c.u16(&s.Engines)
		}
	})
}

func (r *Recipe) shapePlane(c *coder) {
	c.u64(&r.Shapes)
	if r.Shapes != 0 {
		c.raw(&r.ShapePlane, len(c.data)-c.at)
	}
}
