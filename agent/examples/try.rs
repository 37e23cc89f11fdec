fn main() {
    use lj_trace_common::vm::VmConfig;
    let pid: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let g: u64 = u64::from_str_radix(&std::env::args().nth(2).unwrap(), 16).unwrap();
    let text: Vec<u64> =
        std::env::args().nth(3).unwrap().split('-').map(|s| u64::from_str_radix(s, 16).unwrap()).collect();
    let row: Vec<u16> = std::env::args().nth(4).unwrap().split(',').map(|s| s.parse::<i32>().unwrap() as u16).collect();
    let layout = lj_trace_common::layout::VmLayout::from_values(&row.try_into().unwrap());
    let vm = VmConfig { global: g, text_start: text[0], text_end: text[1], layout, ..Default::default() };
    let t = std::time::Instant::now();
    let mut s = match lj_trace::probes::sampler::Sampler::load(&[vm]) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    println!("load {:?}", t.elapsed());
    let p = lj_trace::target::Process::open(pid).unwrap();
    s.attach(&p, 99).unwrap();
    println!("attach {:?} {:?}", t.elapsed(), s.clock());
    let mut ends = std::collections::BTreeMap::new();
    for i in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        s.drain(|x| {
            *ends
                .entry(format!(
                    "{:?} flags {} vmstate {}",
                    lj_trace_common::frame::WalkEnd::from_u32(x.header.walk_end),
                    x.header.flags,
                    x.header.vmstate
                ))
                .or_insert(0) += 1;
            if i == 5 {
                println!("{:?} {}", x.header.walk_end, x.frames.len());
            }
        });
    }
    println!("{ends:#?}");
    for c in lj_trace_common::config::Counter::ALL {
        println!("{} {}", c.describe(), s.count(*c));
    }
}
