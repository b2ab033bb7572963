package kern
import ("testing";"math/rand/v2";"math")
func TestX(t *testing.T) {
	r := rand.New(rand.NewPCG(1,1))
	for it := range 3000 {
		m,n,k := 1+r.IntN(14), 1+r.IntN(150), 1+r.IntN(40)
		if it%10==0 { k = r.IntN(800) }
		ldx,ldw,ldy := k+r.IntN(3), n+r.IntN(5), n+r.IntN(4)
		sp := spice(r.IntN(int(spices)))
		x,w := make([]float32,m*ldx), make([]float32,k*ldw+1)
		xh,wh := make([]uint16,m*ldx), make([]uint16,k*ldw+1)
		for i := range x { x[i]=sp.value(r); xh[i]=uint16(math.Float32bits(x[i])>>16) }
		for i := range w { w[i]=sp.value(r); wh[i]=uint16(math.Float32bits(w[i])>>16) }
		a,b := make([]float32,m*ldy), make([]float32,m*ldy)
		Kernels{}.MulF32(a,ldy,x,ldx,w,ldw,m,n,k)
		Kernels{}.MulBF16(b,ldy,xh,ldx,wh,ldw,m,n,k)
		for _,s := range tiers()[1:] {
			c := make([]float32,m*ldy)
			s.MulF32(c,ldy,x,ldx,w,ldw,m,n,k)
			for i := range c { if math.Float32bits(c[i])!=math.Float32bits(a[i]) { t.Fatal(s.Tier(),m,n,k,ldy,i,c[i],a[i]) } }
			clear(c)
			s.MulBF16(c,ldy,xh,ldx,wh,ldw,m,n,k)
			for i := range c { if math.Float32bits(c[i])!=math.Float32bits(b[i]) { t.Fatal("bf16",s.Tier(),m,n,k,ldy,i,c[i],b[i]) } }
		}
	}
}
