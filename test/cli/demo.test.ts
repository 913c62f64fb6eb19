import { existsSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { folder, Going, oncekey } from './run.ts'

const FREE = ['--port', '0', '--admin-port', '0']

describe('oncekey demo', () => {
  it('X8: a retry storm against a service that fails at random: no order is charged twice', async () => {
    const { status, stdout, stderr } = await oncekey(['demo', ...FREE, '--seconds', '6', '--rate', '40', '--json'])
    const [ready, ...told] = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(stderr).toBe('')
    expect(ready).toEqual({
      event: 'ready',
      gate: expect.stringMatching(/^http:/),
      admin: expect.stringMatching(/^http:/),
      service: expect.stringMatching(/^http:/),
      store: expect.stringMatching(/^sqlite:/),
    })
    const end = told.at(-1)
    expect(end).toMatchObject({ event: 'end', doubles: 0 })
    expect(end.replayed).toBeGreaterThan(0)
    expect(end.charges).toBeGreaterThan(0)
    expect(end.requests).toBeGreaterThan(end.operations)
    expect(end.charges).toBeLessThanOrEqual(end.operations)
    expect(status).toBe(0)
    expect(existsSync(String(ready.store).slice('sqlite:'.length))).toBe(false)
  })

  it('tells people where to look and what to try, keeps --data, and ends with SIGTERM', async () => {
    const data = folder()
    const going = new Going(['demo', ...FREE, '--no-storm', '--data', data])
    await going.out.find(/Ctrl-C ends all of it/)
    const said = going.out.all.join('\n')
    expect(said).not.toContain('\u001b')
    const [, admin] = /Dashboard {2}(http:\S+)/.exec(said) ?? []
    expect((await fetch(`${admin}/readyz`)).status).toBe(200)

    const [, url] = /curl -i (http:\S+)/.exec(said) ?? []
    const send = (amount: number) =>
      fetch(String(url), {
        method: 'POST',
        headers: { 'X-Account': 'you', 'Idempotency-Key': 'mine-1', 'Content-Type': 'application/json' },
        body: JSON.stringify({ amount }),
      })
    let first = await send(4200)
    while (first.status === 503) first = await send(4200)
    // One in twenty is charged and breaks off, which is the other thing that the demo shows.
    const [again, other] = [await send(4200), await send(4300)]
    expect([first.status, again.status, other.status]).toEqual(first.status === 201 ? [201, 201, 422] : [502, 409, 422])
    expect(again.headers.get('idempotent-replayed')).toBe(first.status === 201 ? 'true' : null)

    const [, shown] = / (show mine-1 .*)$/m.exec(said) ?? []
    const show = await oncekey(String(shown).split(' '))
    expect(show.stdout).toMatch(first.status === 201 ? /settled: It ran.*answer +201.*4200/s : /unknown: /)
    expect(await going.stop()).toBe(0)
    expect(going.out.all.at(-1)).toBe('No order was charged twice.')
    expect(existsSync(`${data}/keys.db`)).toBe(true)
  })

  it.each([
    [['--rate', '0'], /--rate is "0", but must be a whole number from 1 to 500/],
    [['--seconds', 'soon'], /--seconds is "soon"/],
    [['--port', '99999'], /--port is "99999"/],
    [['now'], /"now" is too much/],
    [['--loud'], /--loud/],
  ])('%j is refused in words, with code 2', async (args, words) => {
    const { status, stdout, stderr } = await oncekey(['demo', ...args])
    expect(stderr).toMatch(words)
    expect(stdout).toBe('')
    expect(status).toBe(2)
  })
})
