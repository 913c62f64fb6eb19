import { createHash } from 'node:crypto'

/**
 * What the server runs: one script for each verb, so that each verb is one atomic step of one server.
 *
 * A record is one string: a head of fixed width, and then the parts whose lengths stand in the head.
 *
 *     1-5     once2, the format          24-38   gone at
 *     6       r running, c committed,    39-46   bytes of the answer
 *             x rejected                 47-61   created at
 *     7       b body kept, - none        62-71   attempt
 *     8       w awaited, - not           72-103  bytes of labels, id, fingerprint, token: 8 digits each
 *     9-23    lease end, or end of       104-    token, fingerprint, id, labels, answer, body
 *             the answer's life
 *
 * What a settle changes stands in front, and a token right behind its length: so a settle compares one piece with its
 * own, and puts two new ones around the rest. Most of what Lua costs is cutting strings.
 *
 * One string takes half the memory of a hash with a field for each part, and it stays readable in `redis-cli`.
 * Times are the server's, in ms. The key's own expiry is set to the same `gone at`: Redis frees the space by itself,
 * and the scripts decide.
 */
export interface Script {
  readonly text: string
  readonly sha: string
}

/** Of the head, in bytes. */
export const HEAD_BYTES = 103
/** Of the part of it that a claim brings along: attempt and lengths. */
const OWN_HEAD_BYTES = 42
/** The first bytes of every record, and the version of its layout. */
export const FORMAT = 'once2'
/** How a script says that the key holds something else; the start of the server's error. */
export const NOT_OURS = 'ONCEKEYFORMAT'

const IS_NOT_OURS = `sub(record, 1, 5) ~= '${FORMAT}' or #record < ${HEAD_BYTES}`
const UNTIL = 'sub(record, 9, 23)'
const GONE = 'sub(record, 24, 38)'

const NOW = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local sub = string.sub
`

/** `record` is what `read` gives; absent, when it is none or gone. */
const load = (read: string): string => `${NOW}
local record = ${read}
if record and record ~= '' then
  if ${IS_NOT_OURS} then return redis.error_reply('${NOT_OURS} the key holds something else') end
  if now >= tonumber(${GONE}) then record = nil end
else
  record = nil
end
`
const WHOLE = load("redis.call('GET', KEYS[1])")
const HEAD = load(`redis.call('GETRANGE', KEYS[1], 0, ${HEAD_BYTES - 1})`)
const HEAD_AND_TOKEN = load(`redis.call('GETRANGE', KEYS[1], 0, ${HEAD_BYTES - 1} + #ARGV[1])`)

/** The last byte before the answer; `first` is where the lengths of the parts begin that count. */
const lastByte = (first: number): string => `
  local last = ${HEAD_BYTES}
  for from = ${first}, 96, 8 do last = last + tonumber(sub(record, from, from + 7)) end
`

/** An expired answer is not given out: head, token, fingerprint, id and labels only. */
const GIVE = `
local function give(record)
  if now < tonumber(${UNTIL}) or sub(record, 6, 6) == 'r' then return record end
  ${lastByte(72)}
  return sub(record, 1, last)
end
`

/** Compared inside Redis: the length too, or a longer token that begins alike would pass. */
const FENCE = `
if not record or tonumber(sub(record, 96, 103)) ~= #ARGV[1]
  or sub(record, ${HEAD_BYTES + 1}, ${HEAD_BYTES} + #ARGV[1]) ~= ARGV[1] then return 0 end
`

/** Only when somebody waits: a cluster carries every message to all of its servers. A user without the right to
 * publish loses the push, not the write. */
const wake = (channel: string): string => `
if sub(record, 8, 8) == 'w' then redis.pcall('PUBLISH', ${channel}, KEYS[1]) end
`

/** Goes on where memory is full: what was claimed may be finished, and only new claims are refused. */
const ALLOW_OOM = '#!lua flags=allow-oom\n'

/**
 * The two verbs of every request take any number of records at once: what a server spends on a script is mostly spent
 * on starting it. They share ARGV 1 to 4; from 5 on there is one argument for each key. They return one reply for each:
 * a number, a record, or an error's text, so that one record that cannot be used harms no other; and then the time.
 */
const FOR_EACH = `
local replies = {}
for i = 1, #KEYS do replies[i] = one(KEYS[i], ARGV[i + 4], i) end
replies[#KEYS + 1] = now
return replies
`

/**
 * KEYS: records. ARGV: leaseMs, unknownTtlMs, takeover ('1' or ''), whether most of them are probably known ('1' or '');
 * and of each record its bytes from 62 on. Replies with the attempt when acquired; else with the record.
 */
export const CLAIM: Script = script(`${NOW}${GIVE}
local pcall = redis.pcall
local lease = now + ARGV[1]
local gone = lease + ARGV[2]
local times = string.format('%015.0f%015.0f', lease, gone)
local head = '${FORMAT}r--' .. times .. string.format('00000000%015.0f', now)
local expiry = string.format('%.0f', gone)
-- One look at all of them is cheaper than the attempt to write each.
local looked = ARGV[4] == '1' and pcall('MGET', unpack(KEYS)) or {}

local function put(key, record, attempt)
  local done = pcall('SET', key, record, 'PXAT', expiry)
  return done.err or attempt
end

local function known(key, own, record)
  if record == '' then return put(key, head .. own, 1) end
  if ${IS_NOT_OURS} then return '${NOT_OURS} the key holds something else' end
  if now >= tonumber(${GONE}) then return put(key, head .. own, 1) end
  if sub(record, 6, 6) ~= 'r' then return give(record) end
  local token_bytes = tonumber(sub(own, 35, 42))
  local token = sub(own, ${OWN_HEAD_BYTES + 1}, ${OWN_HEAD_BYTES} + token_bytes)
  local attempt = tonumber(sub(record, 62, 71))
  local fingerprint_at = ${HEAD_BYTES + 1} + tonumber(sub(record, 96, 103))
  if sub(record, ${HEAD_BYTES + 1}, fingerprint_at - 1) == token then return attempt end
  local own_fingerprint_at = ${OWN_HEAD_BYTES + 1} + token_bytes
  if ARGV[3] == '' or now < tonumber(${UNTIL})
    or sub(record, fingerprint_at, fingerprint_at + tonumber(sub(record, 88, 95)) - 1)
      ~= sub(own, own_fingerprint_at, own_fingerprint_at + tonumber(sub(own, 27, 34)) - 1) then return give(record) end
  return put(key, sub(record, 1, 8) .. times .. sub(record, 39, 61) .. string.format('%010d', attempt + 1)
    .. sub(record, 72, 95) .. string.format('%08d', #token) .. token .. sub(record, fingerprint_at), attempt + 1)
end

local function one(key, own, i)
  if looked[i] then return known(key, own, looked[i]) end
  local record = pcall('SET', key, head .. own, 'NX', 'GET', 'PXAT', expiry)
  if not record then return 1 end
  if type(record) == 'string' then return known(key, own, record) end
  -- Memory is full, or this is a replica: what is known can still be told.
  local found = pcall('GET', key)
  if type(found) == 'string' then return known(key, own, found) end
  return found and found.err or record.err
end
${FOR_EACH}`)

/**
 * KEYS: records. ARGV: ttlMs, expiredTtlMs, channel, the bodies one behind the other; and for each record the 8 bytes that
 * it will begin with, 10 digits for the bytes of its body, 8 for those of its answer, 8 for those of its token, token and
 * answer. Replies with 1 when the answer of this token is kept.
 */
export const SETTLE: Script = script(`${ALLOW_OOM}${NOW}
local pcall = redis.pcall
local expires = now + ARGV[1]
local gone = expires + ARGV[2]
local times = string.format('%015.0f%015.0f', expires, gone)
local expiry = string.format('%.0f', gone)
local bodies, body_at = ARGV[4], 1

local function one(key, own)
  local body_bytes = tonumber(sub(own, 9, 18))
  local body = sub(bodies, body_at, body_at + body_bytes - 1)
  body_at = body_at + body_bytes
  local record = pcall('GET', key)
  if not record or record == '' then return 0 end
  if type(record) ~= 'string' then return record.err end
  if ${IS_NOT_OURS} then return '${NOT_OURS} the key holds something else' end
  local head = sub(record, 1, 8)
  -- The length too, or a longer token that begins alike would pass.
  local token_bytes = tonumber(sub(own, 27, 34))
  if sub(record, 96, ${HEAD_BYTES} + token_bytes) ~= sub(own, 27, 34 + token_bytes)
    or now >= tonumber(${GONE}) then return 0 end
  local is_awaited = head == '${FORMAT}r-w'
  if not is_awaited and head ~= '${FORMAT}r--' then return 1 end
  local done = pcall('SET', key,
    sub(own, 1, 8) .. times .. sub(own, 19, 26) .. sub(record, 47) .. sub(own, 35 + token_bytes) .. body,
    'PXAT', expiry)
  if done.err then return done.err end
  if is_awaited then pcall('PUBLISH', ARGV[3], key) end
  return 1
end
${FOR_EACH}`)

/** `goneAt` moves along with the lease, keeping its distance. */
const lease = (leaseMs: string): string => `
local lease = now + ${leaseMs}
local gone = lease + tonumber(${GONE}) - tonumber(${UNTIL})
redis.call('SETRANGE', KEYS[1], 8, string.format('%015.0f%015.0f', lease, gone))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', gone))
`

/** KEYS: record. ARGV: token, channel. A record that was taken over is given up instead: an earlier owner may have acted. */
export const RELEASE: Script = script(`${ALLOW_OOM}${HEAD_AND_TOKEN}${FENCE}
if sub(record, 6, 6) ~= 'r' then return 0 end
if tonumber(sub(record, 62, 71)) > 1 then
${lease('0')}
else
  redis.call('DEL', KEYS[1])
end
${wake('ARGV[2]')}
return 1
`)

/** KEYS: record. ARGV: token, leaseMs, channel. */
export const RENEW: Script = script(`${ALLOW_OOM}${HEAD_AND_TOKEN}${FENCE}
if sub(record, 6, 6) ~= 'r' then return 0 end
${lease('ARGV[2]')}
if ARGV[2] == '0' then
${wake('ARGV[3]')}
end
return 1
`)

/** KEYS: record. Returns now and the record, or nothing. */
export const READ: Script = script(`${WHOLE}${GIVE}
if record then return {now, give(record)} end
return false
`)

/** KEYS: record. ARGV: channel. */
export const FORGET: Script = script(`${HEAD}
if not record then return 0 end
redis.call('UNLINK', KEYS[1])
${wake('ARGV[1]')}
return 1
`)

/** KEYS: record. Labels, headers and body go; status, times and fingerprint stay. */
export const REDACT: Script = script(`${ALLOW_OOM}${WHOLE}
if not record or sub(record, 6, 6) == 'r' then return 0 end
${lastByte(80)}
local labels = tonumber(sub(record, 72, 79))
local status = string.match(sub(record, last + labels + 1), '^%[(%d+)')
local answer = status and '[' .. status .. ',[]]' or ''
redis.call('SET', KEYS[1], sub(record, 1, 6) .. '-' .. sub(record, 8, 38) .. string.format('%08d', #answer)
  .. sub(record, 47, 71) .. '00000000' .. sub(record, 80, last) .. answer, 'KEEPTTL')
return 1
`)

/**
 * KEYS: record. Returns how many ms the lease still runs, 0 when the record is not running, and notes that somebody
 * waits. Where memory is full the note is refused; the waiter then looks again by itself.
 */
export const LOOK: Script = script(`${HEAD}
if not record or sub(record, 6, 6) ~= 'r' then return 0 end
local left = tonumber(${UNTIL}) - now
if left <= 0 then return 0 end
if sub(record, 8, 8) ~= 'w' then redis.pcall('SETRANGE', KEYS[1], 7, 'w') end
return left
`)

/** KEYS: record. Frees the answer of an expired record. It stays expired, even when the server's clock steps back. */
export const STRIP: Script = script(`${HEAD}
if not record or sub(record, 6, 6) == 'r' or now < tonumber(${UNTIL}) then return 0 end
${lastByte(72)}
if redis.call('STRLEN', KEYS[1]) == last then return 0 end
local rest = redis.call('GETRANGE', KEYS[1], ${HEAD_BYTES}, last - 1)
redis.call('SET', KEYS[1], sub(record, 1, 6) .. '--000000000000000' .. ${GONE} .. '00000000' .. sub(record, 47) .. rest,
  'PXAT', string.format('%.0f', tonumber(${GONE})))
return 1
`)

function script(text: string): Script {
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}
